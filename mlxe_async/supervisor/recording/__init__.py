"""Recording in which order an `oa` run happened, and replaying it bit for bit."""
