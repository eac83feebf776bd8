"""Pascal VOC: an XML file for each image, lists of image ids."""
