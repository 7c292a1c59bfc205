"""The broker on a running event loop: it joins the core and the log."""
