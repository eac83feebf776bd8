"""Large images in tiles: the labels of the tiles of a split, and training samples cut at random
positions.
"""
