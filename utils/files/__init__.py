"""Files: atomic writes, locks, downloads, archives, and checkpoints read without executing them."""
