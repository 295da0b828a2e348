"""Can this host capture? Each check tries the thing itself and names the remedy."""
