"""Several runs side by side: python -m training.compare RUN ..."""
