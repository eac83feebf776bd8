"""The batch: what follows from its size, and the largest one that fits in memory."""
