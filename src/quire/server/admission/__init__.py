"""Which requests may enter, and how a server drains."""
