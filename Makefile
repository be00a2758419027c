# Two commands do everything on a fresh Debian 12 or Ubuntu 24.04:
#   make demo   install what is missing, build, run the probe on the bundled pair
#   make test   install what is missing, build, lint, run every fast test
# make test-all adds the sanitizer suite, longer fuzzing and real-size runs.
.PHONY: all demo test test-all lint format deps build clean

all: build

deps:
	@scripts/install_deps.sh test

build:
	@scripts/install_deps.sh build
	@scripts/build.sh release

demo:
	@scripts/install_deps.sh build
	@scripts/build.sh release draftprobe
	@scripts/demo.sh

test: deps
	@scripts/build.sh release
	@scripts/test.sh

test-all: test
	@scripts/test_all.sh

lint: deps
	@scripts/lint.sh

format:
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

clean:
	rm -rf build demo-out
