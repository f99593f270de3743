"""What Python and a notebook's cell show of an object: a line, a page of HTML, a timeline to zoom into."""
