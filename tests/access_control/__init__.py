"""Whether a closed cluster is closed: attacks, and MongoDB's own verdicts beside ours."""
