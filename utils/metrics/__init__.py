"""COCO's metrics for boxes: records, matching, the twelve numbers, curves, confusion, COCO JSON."""
