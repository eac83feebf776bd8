"""Building blocks that know nothing of the rest of Kestrel: configuration, devices, files, numbers, pictures."""
