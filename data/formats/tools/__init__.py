"""The formats of annotation tools, a file for each tool."""
