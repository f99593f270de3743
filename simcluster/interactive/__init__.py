"""Interactive pages: the studio (a local web page), notebook cells, and reports with controls."""
