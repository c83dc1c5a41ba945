"""Parts that reliability runs share: a server to harm, clients to watch, and the harm itself."""

import record

record.require("psutil")
