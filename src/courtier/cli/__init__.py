"""One door: verbs that ask a broker, and what they print."""
