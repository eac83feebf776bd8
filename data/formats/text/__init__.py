"""Text files of labels: their encodings, and XML as a stream."""
