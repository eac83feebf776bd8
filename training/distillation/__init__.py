"""--teacher: a larger trained model, from whose maps and predictions a run learns, too."""
