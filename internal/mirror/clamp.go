package mirror

// clampOffset is what is committed here for an offset committed on the source:
// never outside our log, which begins at start and ends at end (W52). A commit
// that passes the data would skip the records that come next.
func clampOffset(source, start, end int64) int64 {
	return max(start, min(source, end))
}
