"""Owns real processes: a fork server, one supervisor a job, and the daemon's side of both."""
