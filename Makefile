# The commands of the project. Each does its own set-up; nothing else needs to be typed first.
# Arguments for a command: make demo ARGS="--seconds 60 --json"

ARGS ?=

# Rustup's folder, for shells that have not been restarted since it was installed.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.PHONY: help demo page check test bench lint soak package docs

help: ## List the commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1 - /p' Makefile

demo: ## Build, then run 1,024 sensors of a burning building from reading to flash (about half a minute)
	@scripts/demo.sh $(ARGS)

check: ## Formatting, clippy, structure, tests of what differs from ARGS=REVISION (else HEAD) and of what depends on it
	@scripts/check.sh $(ARGS)

test: ## Build and run every check and test; the last line is the total
	@scripts/test.sh

page: ## Build the node with its live page, and show it beside 1,024 made-up sensors (needs npm)
	@scripts/page.sh $(ARGS)

bench: ## Measure a part beside its peers, ARGS="flash", "mem", "node", "db", "qos", "stream" or "cluster" and options of it (the store without one)
	@scripts/bench.sh $(ARGS)

lint: ## Formatting, clippy, structure, licences and advisories of dependencies
	@scripts/lint.sh

soak: ## Long runs with random seeds (SOAK_SECONDS, default 3600), and the tests on a loaded machine
	@scripts/soak.sh

package: ## Debian packages for this machine, or ARGS="--arch arm64" ("armhf"), into target/packages; ARGS=--container an image
	@scripts/package.sh $(ARGS)

docs: ## The documentation as a site, in target/site/html, with its links checked (builds mdbook where it is missing)
	@scripts/docs.sh $(ARGS)
