"""Say why labels, or a data set, are not found or not read."""
