"""Large images in tiles: the labels of the tiles, and training samples cut at random positions."""
