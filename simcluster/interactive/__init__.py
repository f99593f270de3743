"""Interactive pages: the studio, notebook cells, and reports with controls."""
