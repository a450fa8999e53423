"""Echelon: training teams to win, and the value of a recurrent state under partial sight."""
