# Targets run alone on a bare machine that has Go; interop and bench also want a
# JDK 17, Maven and the clients, which "make deps" installs where it may.

GO       ?= go
FUZZTIME ?= 10s
T        ?= $(FUZZTIME)
BENCH_MB ?= 1024
CRASH_FOR ?= 60s
COMPACT_BYTES ?= 5000000000
COMPACT_KEYS ?= 10000000
TORTURE_FILES ?= 2000
CYCLES   ?= 50
GB       ?= 10
N        ?= 50000
REQUESTS ?= 1000000
SEED     ?= 0
SEEDS    ?= 200
STEPS    ?= 10000
MINUTES  ?= 10
PARTITIONS ?= 3000

SCRIPTS = bin/kafka-mirror.sh bin/kafka-mirrors.sh bin/kafka-cluster-mirrors.sh

.PHONY: help release deps deps-go deps-system deps-kafka build run cluster demo check test lint interop oldsources matrix kill powercut net failover failback soak rivals rolling reassign history mirrorscale bench peers brokerbench replicationbench microbench compactbench hostile scale restartbench partitionsbench torture crash sim mirrorsim planted scenarios race fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: deps-go deps-system deps-kafka ## fetch modules, Java and test clients, Apache Kafka's jars

deps-go:
	$(GO) mod download
	cd fixtures/clients/go && $(GO) mod download

deps-system:
	@sh fixtures/deps.sh

deps-kafka:
	$(GO) run ./fixtures/apachekafka/fetch

build: bin/lockstep $(SCRIPTS) ## build bin/lockstep and the kafka-mirrors scripts

.PHONY: bin/lockstep # go build knows best whether anything changed
bin/lockstep:
	$(GO) build -o $@ ./cmd/lockstep

$(SCRIPTS): Makefile
	@mkdir -p bin
	@printf '%s\n' '#!/bin/sh' 'exec "$$(dirname "$$(readlink -f "$$0")")/lockstep" mirrors "$$@"' > $@
	@chmod +x $@

release: ## a static binary without paths of this machine, in bin/lockstep
	CGO_ENABLED=0 $(GO) build -trimpath -tags release -ldflags '-s -w' -o bin/lockstep ./cmd/lockstep

run: build ## start a server on 127.0.0.1:9092, data in ./lockstep-data
	bin/lockstep server

cluster: build ## three brokers on this machine as one cluster until Ctrl-C, data in ./lockstep-cluster
	@sh fixtures/cluster.sh

demo: build ## two clusters, a mirror, failover and failback in under a minute
	bin/lockstep demo

check: deps lint test interop ## everything: what a change has to pass
	$(MAKE) kill powercut history CYCLES=3 MINUTES=0.2
	$(HOSTILE) -n 5000 -calm 3s

test: ## all tests that need nothing but Go
	$(GO) test ./...

lint: ## gofmt, go vet with all build tags, seams and step functions
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags interop ./...
	$(GO) vet -tags torture,planted ./cmd/lockstep ./fixtures/clusterrun ./fixtures/failback ./fixtures/historyrun ./fixtures/hostile ./fixtures/killloop ./fixtures/mirrorscale ./fixtures/restart ./fixtures/scale ./internal/partition
	$(GO) run ./internal/tidy/stepvet ./segment ./pipeline ./internal/...
	$(GO) mod verify
	cd fixtures/clients/go && $(GO) vet ./... && $(GO) mod verify

interop: build ## against Apache Kafka and every client (sizes: LOCKSTEP_INTEROP_MB, LOCKSTEP_CHAOS_ROUNDS)
	$(GO) test -tags interop -count=1 -timeout 60m -skip '^Test(Matrix|OldSources|UpdatedSource|TieredSource)$$' ./fixtures/interop/
	$(MATRIX)
	$(GO) test -tags interop -count=1 -timeout 20m -run 'TestApacheKafka|TestLockstep' ./internal/source/ ./segment/

oldsources: build ## migration from Apache Kafka 2.1, 2.8, 3.9, 4.0 and the newest, and from one that is updated meanwhile (about 20 min; one: go test -run 'TestOldSources/3.9.1')
	$(GO) test -tags interop -count=1 -timeout 60m -v -run '^Test(OldSources|UpdatedSource|TieredSource)$$' ./fixtures/interop/

matrix: build ## every client with every feature, and the table of them (README renewed: make matrix ARGS=-matrix.rewrite)
	$(MATRIX)

# -parallel: the clients wait for the server, and it for them, more than they compute.
MATRIX = $(GO) test -tags interop -count=1 -timeout 20m -parallel 4 -v -run '^TestMatrix$$' ./fixtures/interop/ -args $(ARGS)

kill: build ## kill -9 under 64 writers, and of nodes of a cluster of three, CYCLES times (50), then a full scan (SEED= repeats)
	$(KILLLOOP) -run '^TestKill$$' -args -cycles $(CYCLES) -seed $(SEED)
	$(CLUSTERRUN) -run '^TestKill$$' -args -cycles $(CYCLES) -seed $(SEED)

net: build ## partitions and pauses of a cluster of three, then slow, half-open and reset links by a proxy, each CYCLES times, in network namespaces (wants root; SEED= repeats)
	$(CLUSTERRUN) -run '^Test(Net|Proxy)$$' -args -cycles $(CYCLES) -seed $(SEED)

failover: build ## kill -9 of controllers, leaders and all of a cluster with PARTITIONS (3000), CYCLES times: time until all can be written, memory
	$(CLUSTERRUN) -run '^TestFailover$$' -args -cycles $(CYCLES) -partitions $(PARTITIONS) -seed $(SEED)

failback: build ## two clusters of three: the source dies, failover, it comes back, failback, both ways, CYCLES times (20) with PARTITIONS (3000): lost, cut, divergent, times (SEED= repeats; PROFILE=DIR keeps CPU profiles)
	$(GO) test -tags torture -count=1 -timeout 180m -v ./fixtures/failback -run '^TestFailback$$' -args -cycles $(if $(filter file,$(origin CYCLES)),20,$(CYCLES)) -partitions $(PARTITIONS) -seed $(SEED) -profile "$(PROFILE)"

soak: build ## the same for FOR (24h), with a fault every FAULT (1m) and a turn every TURN (1h), and no leaks, with PARTITIONS (3000)
	$(GO) test -tags torture -count=1 -timeout 0 -v ./fixtures/failback -run '^TestSoak$$' -args -for $(or $(FOR),24h) -turn $(or $(TURN),1h) -fault $(or $(FAULT),1m) -partitions $(PARTITIONS) -seed $(SEED)

rivals: build ## kills, cuts and pauses, CYCLES (2) of each kind, to Lockstep and to Apache Kafka: one table, side by side (about 25 min)
	$(CLUSTERRUN) -run '^TestRivals$$' -args -cycles $(if $(filter file,$(origin CYCLES)),2,$(CYCLES)) -seed $(SEED)

rolling: build ## an update of a cluster of three, CYCLES times, under Java, librdkafka and franz-go: no error surfaces; p99
	$(CLUSTERRUN) -run '^TestRolling$$' -args -cycles $(CYCLES)

reassign: build ## a cluster changes its brokers and controllers by the README's commands, 500 partitions under the same clients
	$(CLUSTERRUN) -run '^TestReassign$$'

CLUSTERRUN = $(GO) test -tags torture -count=1 -timeout 120m -v ./fixtures/clusterrun

powercut: ## kill -9 of all on a file system that loses what is not synced; and proof that a loss is seen
	$(GO) build -tags torture,planted -o bin/lockstep-torture ./cmd/lockstep
	LOCKSTEP_BIN=$(CURDIR)/bin/lockstep-torture $(KILLLOOP) -run '^TestPowerCut' -args -cycles $(CYCLES) -seed $(SEED)
	LOCKSTEP_BIN=$(CURDIR)/bin/lockstep-torture $(CLUSTERRUN) -run '^TestPowerCut' -args -cycles $(CYCLES) -seed $(SEED)
	LOCKSTEP_BIN=$(CURDIR)/bin/lockstep-torture $(HISTORY) -run '^TestHistoryPowerCut$$' -args -minutes $(or $(filter-out 10,$(MINUTES)),1) -seed $(SEED)

history: build ## transactions, groups and rebalances under kill -9 for MINUTES (10), then every log against what clients saw (SEED= repeats)
	$(HISTORY) -run '^TestHistory$$' -args -minutes $(MINUTES) -seed $(SEED)

HISTORY = $(GO) test -tags torture -count=1 -timeout 120m -v ./fixtures/historyrun

hostile: build ## REQUESTS fuzzed and hostile requests (1000000) beside a good client: no panic, memory, its p99 (SEED= repeats)
	$(HOSTILE) -n $(REQUESTS) -seed $(SEED)

HOSTILE = $(GO) test -tags torture -count=1 -timeout 120m -v -run '^TestHostile$$' ./fixtures/hostile -args

scale: build ## 2000 connections, 5000 partitions, 200 groups at once: they work; memory, time
	$(GO) test -tags torture -count=1 -timeout 30m -v -run '^TestScale$$' ./fixtures/scale

mirrorscale: build ## mirrors of thousands of partitions: catch-up, memory, clients beside it, a hot one, a source that flaps, failover
	$(GO) test -tags torture -count=1 -timeout 40m -v ./fixtures/mirrorscale

KILLLOOP = $(GO) test -tags torture -count=1 -timeout 60m -v ./fixtures/killloop

bench: build ## the mirror path beside the null mirror: MB/s and CPU s/GB (size: BENCH_MB)
	LOCKSTEP_BENCH_MB=$(BENCH_MB) $(GO) test -tags interop -count=1 -timeout 60m -run '^$$' -bench Mirror -benchtime 3x ./fixtures/interop/

peers: build ## the test suites of franz-go and librdkafka against our server (one: SUITE=kgo, RUN=TestX)
	$(GO) run ./fixtures/peers -suite '$(SUITE)' -run '$(RUN)'

brokerbench: build ## produce and consume beside Apache Kafka: MB/s, CPU s/GB, p99 at half load (size: BENCH_MB)
	LOCKSTEP_BENCH_MB=$(BENCH_MB) $(GO) test -tags interop -count=1 -timeout 60m -run '^$$' -bench Broker -benchtime 3x ./fixtures/interop/

replicationbench: build ## three brokers beside three of Apache Kafka, acks=all: MB/s, CPU s/GB and replica, p99 at half load (size: BENCH_MB)
	LOCKSTEP_BENCH_MB=$(BENCH_MB) $(GO) test -tags interop -count=1 -timeout 60m -run '^$$' -bench '^BenchmarkReplication$$' -benchtime 1x -v ./fixtures/interop/

microbench: ## append, read, look-up, worker, fetch and produce alone, with allocations
	$(GO) test -run '^$$' -bench . -benchmem ./segment ./pipeline ./internal/kafka ./internal/source

compactbench: ## compact COMPACT_BYTES (5 GB) with COMPACT_KEYS (10 million) beside appends: memory, append p99 against that before
	$(COMPACTBENCH)
	$(COMPACTBENCH) -compact.own

COMPACTBENCH = $(GO) test -count=1 -timeout 60m -run '^$$' -bench '^BenchmarkCompactBeside$$' -benchtime 1x ./segment -compact.bytes $(COMPACT_BYTES) -compact.keys $(COMPACT_KEYS)

restartbench: build ## fill GB gibibytes (10), then time starts after kill -9, without the index, after a clean stop
	$(GO) test -tags torture -count=1 -timeout 60m -run '^TestRestart$$' -v ./fixtures/restart -args -gb $(GB)

partitionsbench: build ## N partitions (50000) in a store and in a server: memory, open files, start and stop
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '^BenchmarkPartitions$$' -benchtime 1x ./segment -partitions.n $(N)
	$(GO) test -tags torture -count=1 -timeout 60m -run '^TestPartitions$$' -v ./fixtures/restart -args -n $(N)

torture: ## every bit of two small data directories and TORTURE_FILES damages of larger ones: silent must be 0
	$(GO) test -count=1 -timeout 60m -run '^TestTorture$$' -v ./segment -torture.every 1 -torture.files $(TORTURE_FILES)

crash: ## a power cut after every operation on the file system (H2; longer: CRASH_FOR=10m)
	$(GO) test ./segment -run '^TestCrash$$' -count=1 -v -timeout 60m -crash.full -crash.points 5000 -crash.for $(CRASH_FOR)

sim: ## a cluster with every fault in one goroutine (H1): SEEDS (200) of STEPS (10000) from SEED; one SEED repeats a failure
	$(GO) test ./internal/sim -run '^TestSim$$' -count=1 -v -timeout 120m -args -sim.seed $(or $(filter-out 0,$(SEED)),1) -sim.seeds $(SEEDS) -sim.steps $(STEPS)

mirrorsim: ## two clusters with mirrors in both directions, every fault on both sides and the link (H1): SEEDS (200) of STEPS (10000) from SEED
	$(GO) test ./internal/sim -run '^TestMirrors$$' -count=1 -v -timeout 120m -args -sim.seed $(or $(filter-out 0,$(SEED)),1) -mirrorsim.seeds $(SEEDS) -mirrorsim.steps $(STEPS)

planted: ## each planted bug has to be found by its harness (H10; some: ONLY=name,name)
	$(GO) run ./fixtures/planted -only '$(ONLY)'

scenarios: build ## which test tries which mirror scenario, whether it passes, and what is missing (ARGS=-run=false lists only)
	$(GO) run ./fixtures/scenarios $(ARGS)

race: ## all tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race ./...

fuzz: ## every fuzz target for T (10s), one after the other
	@sh fixtures/fuzz.sh $(T)

clean: ## remove bin and test leftovers
	rm -rf bin
