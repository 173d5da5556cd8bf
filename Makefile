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

.PHONY: all train check check-long check-gpu asan tsan ubsan bench format lint install clean

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j $(JOBS)

# Only a build folder that is not configured yet asks whether the machine has what it takes.
$(BUILD)/CMakeCache.txt:
	@tools/setup.sh
	@cmake -S . -B $(BUILD) $(CMAKE_OPTIONS)

train: all
	@$(BUILD)/ferry train $(TRAIN_OPTIONS)

# Unit tests, tests of the command, and the layer against its reference: minutes.
check: all
	@tools/check.sh $(BUILD) $(CHECK_OPTIONS)

# The same with the longer tier of `ferry check`: hours.
check-long: all
	@tools/check.sh $(BUILD) --long $(CHECK_OPTIONS)

check-gpu: all
	@tools/check_gpu.sh $(BUILD) $(CHECK_OPTIONS)

# Each sanitizer has a build folder of its own.
asan tsan ubsan:
	@$(MAKE) check BUILD=$(BUILD)-$@ CMAKE_OPTIONS="-DFERRY_CUDA=OFF -DFERRY_SANITIZE=$(SANITIZER_$@) $(CMAKE_OPTIONS)"
SANITIZER_asan = address
SANITIZER_tsan = thread
SANITIZER_ubsan = undefined

bench: all
	@cmake --build $(BUILD) -j $(JOBS) --target bench

format:
	@tools/format.sh

lint:
	@tools/lint.sh

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-ubsan
