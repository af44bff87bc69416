"""What a study is: its file, what the file may say, and the cells that it is cut into."""
