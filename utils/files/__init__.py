"""Files: written whole, locked, downloaded, unpacked, read without running them."""
