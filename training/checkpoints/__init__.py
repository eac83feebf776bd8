"""Checkpoints: what they contain, when they are written, and how a run resumes from one."""
