"""HTML pages: reports, also with controls, the studio (a local web page), and notebook cells."""
