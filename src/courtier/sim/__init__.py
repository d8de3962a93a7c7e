"""The simulator: the shipping loop under virtual time, with seeded misfortune. Never meets a real adapter."""
