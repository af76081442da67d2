"""Shows sessions on a web page, live from a server or as one exported file."""
