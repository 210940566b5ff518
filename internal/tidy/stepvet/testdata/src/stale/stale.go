package stale // want `rules.go allows time.Now in stale/stale.go, which does not use it` `rules.go names stale/gone.go, which does not exist`
