package seam

import "os"

func open() { _, _ = os.Open("x") }
