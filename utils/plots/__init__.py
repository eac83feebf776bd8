"""The pictures of a run. What draws loads matplotlib, which takes longer than building a model: import it late."""
