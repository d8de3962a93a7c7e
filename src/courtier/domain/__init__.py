"""What is: frozen values and the tables that give them meaning. Imports nothing but the standard library."""
