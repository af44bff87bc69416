"""What an update gives away in closed form: its tokens, lengths and labels, and how it was made."""
