"""The pictures of a run.

The drawing modules load matplotlib, which takes longer than building a model: import late.
"""
