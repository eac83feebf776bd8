"""What looks like a mistake in the labels or images of a source as a whole."""
