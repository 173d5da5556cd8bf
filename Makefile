# SPDX-License-Identifier: Apache-2.0
# A thin front to CMake, which does the work. Variables: BUILD (folder), JOBS, CMAKE_OPTIONS, TRAIN_OPTIONS,
# CHECK_OPTIONS (of `ferry check`), PREFIX and DESTDIR (of install).
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_OPTIONS ?=
TRAIN_OPTIONS ?=
CHECK_OPTIONS ?=
PREFIX ?= /usr/local

MAKEFLAGS += --no-print-directory

.PHONY: all train check check-long check-gpu asan tsan ubsan fuzz model mutants coverage bench format lint install \
  dist deb clean

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j $(JOBS)

# Only a build folder that is not configured yet asks whether the machine has what it takes.
$(BUILD)/CMakeCache.txt:
	@tools/setup.sh
	@cmake -S . -B $(BUILD) $(CMAKE_OPTIONS)

# The command alone: no tests, no libraries for others.
train: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j $(JOBS) --target ferry
	@$(BUILD)/ferry train $(TRAIN_OPTIONS)

# Unit tests, tests of the command, and the layer against its reference: minutes.
check: all
	@tools/check.sh $(BUILD) $(CHECK_OPTIONS)

# The same with the longer tier of `ferry check`, then the fuzzers: hours.
check-long: all
	@tools/check.sh $(BUILD) --long $(CHECK_OPTIONS)
	@$(MAKE) fuzz

check-gpu: all
	@tools/check_gpu.sh $(BUILD) $(CHECK_OPTIONS)

# Each sanitizer has a build folder of its own.
asan tsan ubsan:
	@$(MAKE) check BUILD=$(BUILD)-$@ CMAKE_OPTIONS="-DFERRY_CUDA=OFF -DFERRY_SANITIZE=$(SANITIZER_$@) $(CMAKE_OPTIONS)"
SANITIZER_asan = address
SANITIZER_tsan = thread
SANITIZER_ubsan = undefined

# Every fuzzer for FUZZ_SECONDS (default 600), built by clang in a folder of its own.
fuzz:
	@command -v clang >/dev/null || { echo "fuzz: clang is missing: apt-get install clang" >&2; exit 1; }
	@cmake -S . -B $(BUILD)-fuzz -DCMAKE_C_COMPILER=clang -DFERRY_CUDA=OFF -DFERRY_FUZZ=ON \
	  -DFERRY_SANITIZE=address,undefined
	@cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzz
	@tests/fuzz/run.sh $(BUILD)-fuzz

# The CUDA backend's tickets, then its schedule and sums lane by lane, on the host: other cases than those of
# `make check`, for MODEL_SECONDS (default 600), half of them each.
model: all
	@[ -x $(BUILD)/ticket_model ] || { echo "model: no C++ compiler: apt-get install g++" >&2; exit 1; }
	@for model in ticket_model lane_model; do \
	  $(BUILD)/$$model --seconds $$(($${MODEL_SECONDS:-600} / 2)) --seed $$(date +%s) || exit 1; \
	done

# Plants every defect of tests/mutants in a copy of the tree: the tests must catch all of them.
mutants:
	@JOBS=$(JOBS) tools/mutants.py $(BUILD)-mutants

# Which lines of src/ the tests of `make check` run: at least 90 % of them. Optimized little, or lines merge.
coverage:
	@$(MAKE) all BUILD=$(BUILD)-$@ CMAKE_OPTIONS="-DFERRY_CUDA=OFF -DFERRY_COVERAGE=ON '-DCMAKE_C_FLAGS_RELEASE=-O1 -g'"
	@find $(BUILD)-$@ -name '*.gcda' -delete
	@tools/check.sh $(BUILD)-$@ $(CHECK_OPTIONS) || echo "coverage: some tests fail in a build this slow"
	@tools/coverage.sh $(BUILD)-$@

bench: all
	@cmake --build $(BUILD) -j $(JOBS) --target bench

format:
	@tools/format.sh

lint:
	@tools/lint.sh

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

# The sources of the last commit, and Debian packages of them.
dist:
	@tools/dist.sh $(BUILD)

deb:
	@JOBS=$(JOBS) tools/deb.sh $(BUILD)-deb

clean:
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-ubsan $(BUILD)-fuzz $(BUILD)-mutants \
	  $(BUILD)-coverage $(BUILD)-deb $(BUILD)-ci-venv
