"""`capsroute bench`: the library against the textbook form; cases, timing, tables."""
