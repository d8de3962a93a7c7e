"""The wire: one schema for requests, answers and docs; a light client; a server whose routes only translate."""
