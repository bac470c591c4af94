# `make lab` runs a farm on this machine, `make test` passes the tests; both do all set-up themselves.
# A Python >= 3.11 is looked for; name another with PYTHON=/path/to/python3.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: lab lab-i2p test test-slow test-spark test-spark-cluster test-browser test-i2p test-java test-dafka test-upgrade i2pd check sim explore soak soak-i2p fuzz crash chaos bench tour tour-dafka tour-i2p bench-spark bench-i2p bench-cost bench-dafka wheel deb release-check test-python test-lowest debs bench-debs clean help

# Tests start the program many hundred times, and each start would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$python"; break; }; done)
SEEDS ?= 1000
HOURS ?= 100
KILLS ?= 50
FAULTS ?= 100
MINUTES ?= 10
# Empty: another one each time, which is printed.
SEED ?=
# Markers of tests (pyproject.toml) that this machine can run: one of them that is skipped is a failed one.
MUST_RUN ?=
# Processes that share the tests; 0: none but pytest's own.
WORKERS ?= 2
DAFKA_C ?=
JAVA_I2P ?=
SUITE ?= forky
LAB ?=
COST ?=

# What `make test` runs.
QUICK = not slow and not spark and not i2p and not javai2p and not cdafka and not upgrade
# Where the slow tests are: who runs no others need not import the rest, which takes each worker ten seconds.
SLOW = $(sort $(shell grep -rl --include='test_*.py' 'mark\.slow' tests))
# Those that take a worker the longest begin first, so that none is left alone with one at the end.
LONGEST = tests/testing/simulator/test_simulator.py tests/routers/test_real_i2pd.py \
	tests/machines/test_three_machines.py tests/machines/test_deb.py tests/cli/test_node_join.py \
	tests/raft/test_leases_explored.py tests/raft/test_raft_mutants.py tests/storage/test_storage_mutants.py \
	tests/publishing/test_fold_against_naive_fold.py tests/crash/test_crash.py
# Where they are found, `make release-check` installs the wheel on each.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

# Tests of one module share what it sets up, so they stay in one worker.
PYTEST = .venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope $(if $(SEED),--hypothesis-seed $(SEED))
PIP = .venv/bin/python -m pip --disable-pip-version-check
# Once more where a download broke off: pip keeps those that came whole.
INSTALL = $(PIP) install --quiet --editable '$(WHAT)'
INSTALLED = @echo "Installing garlicfarm$(WHAT:.%=%) into .venv" >&2; $(INSTALL) || $(INSTALL)

# Without a terminal there is no Ctrl-C; on one, the farm is shown while Spark is being installed. Ctrl-C is
# how it ends (130): the shell outlives it, so that make reports no error. Without Spark: .venv/bin/garlicfarm lab.
lab: .venv/base ## a farm of three nodes on this machine, ranked by Spark (LAB="--nodes 5": options)
	@if [ -t 1 ]; then trap : INT; \
		.venv/bin/garlicfarm lab --rank --prepare '$(MAKE) .venv/spark' $(LAB) || [ $$? = 130 ]; \
	else $(MAKE) --silent --no-print-directory .venv/spark && .venv/bin/garlicfarm lab --until ranked $(LAB); fi

# As `lab`: a terminal shows it, otherwise it kills the router that serves and waits until another one does.
lab-i2p: .venv/base ## a web site inside a private I2P network that a farm publishes: kill its router, watch it move (needs i2pd)
	@if [ -t 1 ]; then trap : INT; .venv/bin/garlicfarm lab --site $(LAB) || [ $$? = 130 ]; \
	else .venv/bin/garlicfarm lab --until moved $(LAB); fi

# They wait as long as they compute: on two cores, five are quicker than four or six.
test: WORKERS = 5
test: .venv/test ## ruff, mypy and the quick tests; prints the CPU-seconds that they took
	@.venv/bin/python -m tools.metered "make test" sh -ec '$(MAKE) --no-print-directory check; \
		$(PYTEST) -m "$(QUICK)" --must-run "$(MUST_RUN)"'

test-slow: WORKERS = 4
test-slow: .venv/test ## the tests that take longer: processes that are killed, mutants, browsers, real routers
	@.venv/bin/python -m tools.metered "make test-slow" \
		$(PYTEST) --no-loadscope-reorder $(LONGEST) $(filter-out $(LONGEST),$(SLOW)) \
		-m "slow and not spark and not i2p and not javai2p" --must-run "$(MUST_RUN)"

test-spark: .venv/test .venv/connect ## the tests that need Spark (installs it: about 560 MiB)
	$(PYTEST) -m "spark and not cluster" --must-run "spark $(MUST_RUN)" tests/spark

test-spark-cluster: .venv/test .venv/spark ## executors and drivers killed on a standalone Spark cluster of two workers (minutes; 3 GB)
	@free=$$(awk '/^MemAvailable:/ { print int($$2 / 1048576) }' /proc/meminfo); [ "$$free" -ge 3 ] || { \
		echo "skipped: the cluster needs 3 GB of memory, and this machine has $$free to spare"; exit 0; }; \
	exec .venv/bin/python -m pytest -m cluster --must-run "cluster spark" tests/spark

test-browser: .venv/test ## the dashboard in Debian's Chromium, headless
	.venv/bin/python -m pytest -m browser --must-run browser tests/browser

# What is newer than Debian 12's runs where it can be fetched.
i2pd: .venv/base ## the i2pd of another Debian, SUITE=forky or trixie, for make test-i2p; nothing is installed
	@test -x .i2pd/$(SUITE)/i2pd || .venv/bin/python -m tools.debian_i2pd $(SUITE) .i2pd/$(SUITE)

# They wait for routers more than they compute.
test-i2p: WORKERS = 4
test-i2p: .venv/test i2pd ## a farm over a private I2P network of real routers (needs i2pd and iproute2; minutes)
	$(PYTEST) --no-loadscope-reorder -m "i2p or spark" --must-run "i2p $(MUST_RUN)" tests/i2p

# Each network has several Java virtual machines, and mostly waits: four at a time. Its tests share nothing.
test-java: WORKERS = 4
test-java: .venv/test ## farms and services at Java I2P routers: JAVA_I2P=DIRECTORY of python -m tools.java_i2p (needs i2pd of 2.47 or later; minutes)
	@test -f "$(JAVA_I2P)/lib/router.jar" || { \
		echo "skipped: JAVA_I2P= must name a directory that python -m tools.java_i2p has made"; exit 0; }; \
	JAVA_I2P="$(abspath $(JAVA_I2P))" exec $(PYTEST) --dist worksteal -m javai2p --must-run "javai2p i2pd netns $(MUST_RUN)" tests/java

# The C programs listen at all addresses; its tower needs one that is no loopback address.
test-dafka: .venv/test ## the plugin dafka beside the C implementation: DAFKA_C=DIRECTORY with its programs (needs iproute2)
	@test -x "$(DAFKA_C)/dafka_towerd" || { \
		echo "skipped: DAFKA_C= must name a directory with dafka_towerd and the other programs of the C implementation"; exit 0; }; \
	DAFKA_C="$(abspath $(DAFKA_C))" unshare --user --map-root-user --net sh -ec 'ip link set lo up; \
		ip tuntap add dev dafka mode tap; ip address add 10.77.0.1/24 dev dafka; ip link set dafka up; \
		exec .venv/bin/python -m pytest -m cdafka --must-run cdafka tests/dafka'

test-upgrade: .venv/test ## farms whose nodes run 0.2.0 (built from git's history), this tree and a program to come: up, and back
	$(PYTEST) -m upgrade --must-run "upgrade $(MUST_RUN)" tests/upgrade

test-python: ## the quick tests on another Python, in an environment of its own (PYTHON=python3.12)
	@made=.venv-$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
		{ [ -x $$made/bin/pip ] || "$(PYTHON)" -m venv $$made; } && \
		$$made/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]' && \
		$$made/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope -m "$(QUICK)"

test-lowest: .venv/release ## the quick tests with the lowest versions that pyproject.toml allows of what garlicfarm needs
	.venv/bin/uv venv --quiet --clear --seed --python .venv/bin/python .venv-lowest
	.venv/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[dafka]'
	.venv/bin/uv pip install --quiet --python .venv-lowest/bin/python --editable '.[test]'
	.venv-lowest/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope -m "$(QUICK)"

check: .venv/test ## ruff and mypy only
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

sim: .venv/test ## the core in a simulated network: SEEDS runs, who publishes, in a tenth as many, and HOURS on slow and broken links
	.venv/bin/python -m garlicfarm.testing.simulator --seeds $(SEEDS)
	.venv/bin/python -m garlicfarm.testing.simulator --publisher --seeds $$(( ($(SEEDS) + 9) / 10 ))
	.venv/bin/python -m garlicfarm.testing.simulator --outside --seeds $$(( ($(SEEDS) + 19) / 20 ))
	.venv/bin/python -m garlicfarm.testing.simulator --comparing --seeds $$(( ($(SEEDS) + 49) / 50 ))
	.venv/bin/python -m garlicfarm.testing.simulator --slow --hours $(HOURS)
	.venv/bin/python -m garlicfarm.testing.simulator --slow --hours $(HOURS) --round-trips changing

explore: .venv/test ## all that three members can do with leases on heartbeats, within bounds: two never publish at once (minutes)
	.venv/bin/python -m tests.raft.explore_leases --moves 0 --messages 0 --beats 2
	.venv/bin/python -m tests.raft.explore_leases

soak: SEEDS = 10000
soak: HOURS = 400
soak: sim ## the same at length (SEEDS=10000 HOURS=400), and farms of 1 to 5 members, a tenth as many seeds each
	for nodes in 1 2 4 5; do .venv/bin/python -m garlicfarm.testing.simulator --nodes $$nodes \
		--seeds $$(( ($(SEEDS) + 9) / 10 )) || exit; done

fuzz: .venv/test .venv/fuzz ## hostile bytes into every decoder and into stores, for MINUTES: by atheris, else by Hypothesis
	.venv/bin/python -m tests.fuzz.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

crash: .venv/test ## own processes, their leader killed KILLS times; nothing acknowledged may be lost
	.venv/bin/python -m tests.crash.run --kills $(KILLS) --must-run "$(MUST_RUN)"

chaos: .venv/test ## own processes, FAULTS faults of their networks, disks, clocks and lives; nothing promised may be broken
	.venv/bin/python -m tests.chaos.run --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) --must-run "$(MUST_RUN)"
	.venv/bin/python -m tests.chaos.run --nodes 3 --faults 2 --kinds kill pause --mutant reads-anywhere

soak-i2p: MINUTES = 30
soak-i2p: .venv/test ## below farms on real routers: routers killed and restarted, for MINUTES those of a service, or late packets
	.venv/bin/python -m tests.i2p.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --must-run "$(MUST_RUN)"

tour: .venv/base ## compose.yaml in containers: kill the leader, cut a network, heal (as root on Debian 12: gets an engine)
	.venv/bin/python -m tests.compose.tour

tour-dafka: .venv/base ## the profile dafka of compose.yaml in containers: kill the leader in mid-stream, and the store (gets an engine as well)
	.venv/bin/python -m tests.compose.tour_dafka

tour-i2p: .venv/base ## the profile i2p of compose.yaml in containers: kill the leader and its router (gets an engine as well)
	.venv/bin/python -m tests.compose.tour_i2p

bench: .venv/bench ## what an entry costs, beside etcd (make bench-debs) and PySyncObj; starting, failover, long logs, memory, the fold, catching up, watchers
	@status=0; for each in compare start memory idle failover "failover --silent" long_log catch_up fold isolation watchers; do \
		.venv/bin/python -m benchmarks.$$each || status=1; done; exit $$status

bench-spark: .venv/test .venv/spark ## what ranking in Spark costs; fails where a ratio is not kept
	@status=0; for each in whatif history "spark --memory" spark_farms; do \
		.venv/bin/python -m benchmarks.$$each || status=1; done; exit $$status

bench-i2p: .venv/base ## what a farm costs in round trips where I2P is slow: real routers (needs i2pd, iproute2); fails where a limit is not kept
	.venv/bin/python -m benchmarks.i2p

bench-cost: .venv/base ## what a farm of five costs each node: traffic, memory, CPU, disk; quarter of an hour (COST=--i2p: over real routers)
	.venv/bin/python -m benchmarks.cost $(COST)

bench-dafka: .venv/dafka ## Dafka in Python beside ZeroMQ alone: live, stored, catching up; fails where a ratio is not kept
	@status=0; for each in dafka dafka_farm; do .venv/bin/python -m benchmarks.$$each || status=1; done; exit $$status

wheel: .venv/base ## the distribution, into dist/
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .

deb: .venv/base ## a Debian package for the Debian that this machine runs, with all libraries, into dist/
	sh tools/deb.sh

release-check: .venv/release ## whether a release can be made of this commit: changelog, wheel built twice, PYTHONS, lowest versions
	.venv/bin/python -m tools.release_check $(PYTHONS)
	$(MAKE) --no-print-directory test-lowest

debs: ## print the Debian packages that tests can use; as root, install them
	sh tools/debs.sh

bench-debs: ## print the Debian packages that `make bench` compares with (etcd, Go: about 900 MB); as root, install them
	sh tools/debs.sh bench

clean: ## remove what was built and cached, but for .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' Makefile

# Debian's Python has `venv` without what it needs, which leaves half an environment behind.
.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or later was found; install one (Debian: apt install python3 python3-venv) or name it with PYTHON=." >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is no Python 3.11 or later; name one with PYTHON=." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a virtual environment; install what it lacks (Debian: apt install python3-venv)." >&2; exit 1; }
	@"$(PYTHON)" -m venv .venv

.venv/base: WHAT = .
.venv/base: pyproject.toml | .venv/bin/python
	$(INSTALLED)
	@touch $@

.venv/test: WHAT = .[test]
.venv/test: .venv/base
	$(INSTALLED)
	@touch $@

.venv/release: WHAT = .[test,release]
.venv/release: .venv/base
	$(INSTALLED)
	@touch $@

.venv/bench: WHAT = .[bench]
.venv/bench: .venv/base
	$(INSTALLED)
	@touch $@

.venv/dafka: WHAT = .[dafka]
.venv/dafka: .venv/base
	$(INSTALLED)
	@touch $@

# For some machines there is no wheel of it, and building it takes clang.
.venv/fuzz: pyproject.toml | .venv/bin/python
	@if $(PIP) install --quiet --editable '.[fuzz]' >.venv/fuzz.log 2>&1; then touch $@; \
	else echo "atheris cannot be installed (.venv/fuzz.log says why): Hypothesis takes its place." >&2; fi

.venv/spark: WHAT = .[spark,java]
.venv/spark: pyproject.toml | .venv/bin/python
	@echo "Spark and a Java are about 560 MiB to download; this takes minutes." >&2
	$(INSTALLED)
	@touch $@

.venv/connect: WHAT = .[spark,java,connect]
.venv/connect: .venv/spark
	$(INSTALLED)
	@touch $@
