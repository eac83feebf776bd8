"""What a checkpoint holds, when it is written, and how a run resumes from it."""
