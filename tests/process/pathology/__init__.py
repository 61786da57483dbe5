"""Jobs whose cause is known, since it was made on purpose, and what `hpcncf diagnose` says."""
