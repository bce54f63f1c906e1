# softswap: `make help` lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
INSTALL ?= install
# Strips binaries. `make install INSTALL_PROGRAM=install` keeps symbols and debug information.
INSTALL_PROGRAM ?= $(INSTALL) -s
# Output directory of cargo.
TARGET_DIR ?= $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET_DIR)/release

# Library directory of the linker and the loader. Debian has one for each architecture.
LIBDIR ?= $(PREFIX)/lib

bindir := $(DESTDIR)$(PREFIX)/bin
libdir := $(DESTDIR)$(PREFIX)/lib/softswap
clibdir := $(DESTDIR)$(LIBDIR)
includedir := $(DESTDIR)$(PREFIX)/include/softswap
share := $(DESTDIR)$(PREFIX)/share
docdir := $(share)/doc/softswap
documents := LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md docs/grafana-dashboard.json \
  $(addprefix docs/,$(addsuffix .md,start budget containers notebooks clusters disks remote debugging \
  library troubleshooting reference limits threat-model))
headers := crates/capi/include/softswap.h crates/capi/include/softswap.hpp
version := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
completions := bash-completion/completions/softswap zsh/site-functions/_softswap \
  fish/vendor_completions.d/softswap.fish

# rustup may know the pinned compiler under another name.
toolchain := $(shell tests/toolchain.sh)
ifneq ($(toolchain),)
export RUSTUP_TOOLCHAIN := $(toolchain)
endif

# Binaries contain the same source paths on every machine. Otherwise panics, asserts in C and debug
# information would reveal the build directory. `paths` are FROM=TO.
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
sysroot := $(shell RUSTUP_TOOLCHAIN="$(toolchain)" rustc --print sysroot 2>/dev/null)
paths = $(CURDIR)=. $(cargo_home)/registry/src=crates.io $(cargo_home)=cargo \
  $(abspath $(TARGET_DIR))=target $(sysroot)=rust
remap_rust = $(RUSTFLAGS) $(addprefix --remap-path-prefix=,$(paths)) $(addprefix -Clink-arg=,$(old_glibc))
remap_c = $(CFLAGS) $(addprefix -ffile-prefix-map=,$(paths))

.DEFAULT_GOAL := build
.PHONY: build check demo test bench doc test-long test-flaky test-compat test-guest deny fuzz miri tsan install install-debug uninstall deb wheel tarball test-wheel dist clean help tools-deb tools-wheel tools-dist

# GLIBC=2.28 makes binaries that need no newer glibc (needs `pip install ziglang`).
ifdef GLIBC
stubs := $(abspath $(TARGET_DIR))/glibc-$(GLIBC)
# The system's libgcc_s.so.1 needs symbols of the system's glibc.
old_glibc := -B$(stubs) -L$(stubs) -Wl,--allow-shlib-undefined
$(stubs):
	$(call needs,python-zig,pip install ziglang)
	packaging/glibc.sh $(GLIBC) $@
build: | $(stubs)
endif

build wheel: export RUSTFLAGS := $(remap_rust)
build wheel: export CFLAGS := $(remap_c)
build: export LDFLAGS += $(old_glibc)
build: ## build the command, its benchmarks, the libraries, man pages and completions
	$(CARGO) build --release --workspace
	crates/capi/link.sh "$(RELEASE)/libsoftswap_c.a" "$(RELEASE)/capi"
	rm -rf "$(RELEASE)/share"
	"$(RELEASE)/softswap-manual" "$(RELEASE)/share"

check: ## format, order, lints and unit tests: what to run before each commit
	$(CARGO) fmt --all --check
	tests/order_test.py
	tests/order.py
	tests/names.py
	tests/versions.py
	tests/prose.py
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --lib

test: ## run what a change can break, as CI does: 15 minutes
	tests/run.sh

bench: build ## measure what softswap costs here: BENCH=faults, or what `softswap bench --help` lists
	"$(RELEASE)/softswap" bench $(or $(BENCH),faults)

doc: ## build the documentation of the code, also of what is private
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --exclude softswap --document-private-items
	# Separate run: the runtime's library has the same name.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps -p softswap --all-features --target-dir "$(TARGET_DIR)/library"

demo: build ## run a real program in a quarter of the memory it needs
	SOFTSWAP_BIN_DIR="$(abspath $(RELEASE))" examples/demo.sh

# SOFTSWAP_FAULTS=N, SOFTSWAP_TREE_TURNS=N and SOFTSWAP_TURNS=N set the number of device faults,
# rounds of process trees and cluster faults. CONTRIBUTING.md lists the other variables.
test-long: ## run every test in all ways and as all users, with guests and many repetitions (a day; root)
	tests/run.sh long

test-flaky: ## run the tests N=5 times while busy loops run, all or ONLY=pattern, and list what failed
	tests/run.sh flaky --times "$(or $(N),5)" --only "$(ONLY)"

test-guest: ## boot Debian kernels in QEMU and run checks inside
	tests/guest/run.sh

test-compat: build ## run real programs plain and managed (hours; ONLY=redis,zstd picks some)
	tests/compat/run.py --bin-dir "$(abspath $(RELEASE))" --document docs/compatibility.md \
	    $(if $(ONLY),--only "$(ONLY)") $(COMPAT_FLAGS)

deny: ## check licences, advisories, duplicates and sources of all crates
	tests/deny.sh

fuzz: ## fuzz one parser with libFuzzer: TARGET=header SECONDS=60 (needs nightly)
	tests/nightly.sh fuzz "$(TARGET)" "$(or $(SECONDS),60)"

miri: ## run the leaves of the engine in Miri (needs nightly)
	tests/nightly.sh miri

tsan: ## run the engine's tests under ThreadSanitizer (needs nightly)
	tests/nightly.sh tsan

# Folders of libraries that the loader searches by itself. Programs find others by an rpath.
searched := /usr/lib /usr/lib/% /usr/lib64 /usr/local/lib
comma := ,
rpath = $(if $(filter $(searched),$(LIBDIR)),, -Wl$(comma)-rpath$(comma)$${libdir})

# Links to documents that are not installed are replaced by their text.
define install_documents
for file in $(documents); do \
  sed -E -e 's#!\[[^]]*\]\([^)]*\)##g' -e 's#\]\((docs/|\.\./)#](#g' \
    -e 's#\[([^]]*)\]\((crates|pictures|experiments|ARCHITECTURE|CONTRIBUTING|benchmarks|compatibility)[^)]*\)#\1#g' \
    "$$file" >"$(1)/$$(basename "$$file")" && chmod 644 "$(1)/$$(basename "$$file")" || exit; \
done
endef

# Builds only if a file is missing, so that root needs no toolchain to install after `make`.
install: ## install into PREFIX (default /usr/local); it uses DESTDIR
	@test -x "$(RELEASE)/softswap" && test -x "$(RELEASE)/softswap-bench" && \
	  test -x "$(RELEASE)/softswap-remote" && \
	  test -f "$(RELEASE)/libsoftswap.so" && test -d "$(RELEASE)/capi" && \
	  test -d "$(RELEASE)/share" || $(MAKE) build
	$(INSTALL) -d "$(bindir)" "$(libdir)" "$(clibdir)/pkgconfig" "$(includedir)" "$(docdir)" \
	  "$(share)/man/man1"
	$(INSTALL_PROGRAM) -m 755 "$(RELEASE)/softswap" "$(RELEASE)/softswap-bench" "$(RELEASE)/softswap-remote" "$(bindir)/"
	$(INSTALL_PROGRAM) -m 644 "$(RELEASE)/libsoftswap.so" "$(libdir)/libsoftswap.so"
	$(INSTALL) -m 644 packaging/libsoftswap.so-gdb.py "$(libdir)/"
	$(INSTALL_PROGRAM) -m 644 "$(RELEASE)/capi/libsoftswap_c.so.$(version)" "$(clibdir)/"
	cp -P "$(RELEASE)/capi/libsoftswap_c.so.$(basename $(version))" "$(RELEASE)/capi/libsoftswap_c.so" "$(clibdir)/"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(version)|' \
	  -e 's|@RPATH@|$(rpath)|' crates/capi/softswap_c.pc.in >"$(clibdir)/pkgconfig/softswap_c.pc"
	chmod 644 "$(clibdir)/pkgconfig/softswap_c.pc"
	$(INSTALL) -m 644 $(headers) "$(includedir)/"
	$(call install_documents,$(docdir))
	$(INSTALL) -m 644 "$(RELEASE)/share/man/man1/"*.1 "$(share)/man/man1/"
	$(foreach file,$(completions),$(INSTALL) -D -m 644 "$(RELEASE)/share/$(file)" "$(share)/$(file)" &&) :
# Updates the loader's cache. Packages do this during their installation.
	@test -n "$(DESTDIR)" || ldconfig 2>/dev/null || :
	@test -n "$(DESTDIR)" || ldconfig -p 2>/dev/null | grep -qF "$(LIBDIR)/libsoftswap_c.so" || \
	  echo "make: programs in C find libsoftswap_c.so if they are linked with -Wl,-rpath,$(LIBDIR)"

# gdb looks for debug information in `.debug` of the folder of a file.
with_debug := $(bindir)/softswap $(bindir)/softswap-bench $(bindir)/softswap-remote \
  $(libdir)/libsoftswap.so $(clibdir)/libsoftswap_c.so.$(version)
install-debug: install ## the same, and debug information in files of its own
	for file in $(with_debug); do \
	  folder=$$(dirname "$$file")/.debug name=$$(basename "$$file") && mkdir -p "$$folder" && \
	  built=$$(find "$(RELEASE)/$$name" "$(RELEASE)/capi/$$name" 2>/dev/null | head -n 1) && \
	  objcopy --only-keep-debug "$$built" "$$folder/$$name.debug" && chmod 644 "$$folder/$$name.debug" && \
	  (cd "$$folder" && objcopy --add-gnu-debuglink="$$name.debug" "$$file") || exit; \
	done

uninstall: ## remove what install put there
	for file in $(with_debug); do \
	  folder=$$(dirname "$$file")/.debug; \
	  rm -f "$$folder/$$(basename "$$file").debug"; rmdir "$$folder" 2>/dev/null || :; \
	done
	rm -f "$(bindir)/softswap" "$(bindir)/softswap-bench" "$(bindir)/softswap-remote" "$(libdir)/libsoftswap.so" \
	  "$(libdir)/libsoftswap.so-gdb.py" \
	  "$(clibdir)"/libsoftswap_c.so "$(clibdir)"/libsoftswap_c.so.* \
	  "$(clibdir)/pkgconfig/softswap_c.pc" $(foreach file,$(notdir $(headers)),"$(includedir)/$(file)") \
	  $(foreach file,$(completions),"$(share)/$(file)") \
	  "$(share)/man/man1/softswap.1" "$(share)/man/man1"/softswap-*.1 \
	  $(foreach file,$(notdir $(documents)),"$(docdir)/$(file)")
# Removes empty directories, inner ones first.
	@printf '%s\n' "$(libdir)" "$(includedir)" "$(docdir)" "$(share)/doc" "$(share)/man/man1" "$(clibdir)/pkgconfig" \
	  $(foreach file,$(completions),"$(share)/$(dir $(file))" "$(share)/$(firstword $(subst /, ,$(file)))") | \
	  sort -ru | while read -r folder; do rmdir "$$folder" 2>/dev/null || :; done
	@test -n "$(DESTDIR)" || ldconfig 2>/dev/null || :

# Fails before a long build if a tool is missing.
needs = @command -v $(1) >/dev/null || { echo "make: $(1) is missing; get it by \`$(2)\`" >&2; exit 1; }
tools-deb:
	$(call needs,dh,sudo apt install debhelper)
tools-wheel:
	$(call needs,maturin,pip install maturin)
	$(call needs,auditwheel,pip install auditwheel)
tools-dist: tools-deb tools-wheel
	$(call needs,python-zig,pip install ziglang)
	$(call needs,cargo-cyclonedx,cargo install --locked cargo-cyclonedx)

# The packages contain what `make install` installs. Debug information is in separate packages.
deb: tools-deb build ## build the Debian packages into dist/ (needs debhelper)
	rm -rf "$(RELEASE)/deb"
	mkdir -p "$(RELEASE)/deb/softswap" dist
	cp -r packaging/debian "$(RELEASE)/deb/softswap/"
	cd "$(RELEASE)/deb/softswap" && SOURCE="$(CURDIR)" dpkg-buildpackage --build=binary --no-sign
	mv "$(RELEASE)"/deb/*.deb dist/
	packaging/paths.sh $$(find "$(RELEASE)/deb/softswap/debian/tmp" -type f)

# The oldest glibc that the binaries run with: the build machine's, at most 2.34, because they use no
# newer symbols. The packages check that.
data := crates/python/softswap.data
built_with = $(shell getconf GNU_LIBC_VERSION | sed 's/.* //')
glibc = $(or $(GLIBC),$(shell printf '2.34\n$(built_with)\n' | sort -V | head -1))
MANYLINUX ?= manylinux_$(subst .,_,$(glibc))
# pip installs the contents of `scripts` and `data` like `make install`.
wheel: tools-wheel build ## build the wheel for Python into dist/ (needs `pip install maturin auditwheel`)
	rm -rf $(data)
	$(INSTALL) -d $(data)/scripts $(data)/data/lib/softswap $(data)/data/share/man/man1 \
	  $(data)/data/share/doc/softswap
	$(INSTALL) -s -m 755 "$(RELEASE)/softswap" "$(RELEASE)/softswap-bench" "$(RELEASE)/softswap-remote" $(data)/scripts/
	$(INSTALL) -s -m 755 "$(RELEASE)/libsoftswap.so" $(data)/data/lib/softswap/
	$(INSTALL) -m 644 packaging/libsoftswap.so-gdb.py $(data)/data/lib/softswap/
	$(INSTALL) -m 644 "$(RELEASE)"/share/man/man1/*.1 $(data)/data/share/man/man1/
	$(call install_documents,$(data)/data/share/doc/softswap)
	packaging/licences.py >$(data)/data/share/doc/softswap/licences.txt
	maturin build --release --manifest-path crates/python/Cargo.toml --compatibility $(MANYLINUX) --out dist
	auditwheel show dist/softswap-*.whl | grep '"$(MANYLINUX)_x86_64"'
	rm -rf "$(RELEASE)/wheel"
	python3 -m zipfile -e dist/softswap-*.whl "$(RELEASE)/wheel"
	packaging/paths.sh $$(find "$(RELEASE)/wheel" -type f)

# Unpacked anywhere, it works in place: softswap finds its library in the folder next to its own.
unpacked = softswap-$(version)-glibc$(glibc)-x86_64
tarball: build ## pack what install installs into dist/, for any directory
	rm -rf "$(RELEASE)/tarball"
	$(MAKE) install DESTDIR="$(abspath $(RELEASE))/tarball" PREFIX=/$(unpacked)
	sed -i 's|^prefix=.*|prefix=$${pcfiledir}/../..|; s|^libdir=.*|libdir=$${prefix}/lib|' \
	  "$(RELEASE)/tarball/$(unpacked)/lib/pkgconfig/softswap_c.pc"
	packaging/licences.py >"$(RELEASE)/tarball/$(unpacked)/share/doc/softswap/licences.txt"
	packaging/paths.sh $$(find "$(RELEASE)/tarball" -type f)
	cd "$(RELEASE)/tarball/$(unpacked)" && { objdump -T bin/* lib/*/*.so lib/*.so.* | \
	  grep -oE 'GLIBC_[0-9.]+'; echo GLIBC_$(glibc); } | sort -V | tail -n 1 | grep -x 'GLIBC_$(glibc)'
	mkdir -p dist
	tar -C "$(RELEASE)/tarball" --owner=0 --group=0 --sort=name -cJf "dist/$(unpacked).tar.xz" $(unpacked)

test-wheel: ## install the wheel of dist/ into a fresh environment and run its tests (fetches NumPy)
	tests/wheel.sh

dist: tools-dist ## build all packages into dist/, with checksums and a list of what is in them (SBOM)
	rm -rf dist
	$(MAKE) deb wheel tarball GLIBC=$(or $(GLIBC),2.28)
	$(CARGO) cyclonedx --manifest-path crates/python/Cargo.toml --format json --override-filename softswap.cdx
	for crate in cli bench runtime capi python; do \
	  mv crates/$$crate/softswap.cdx.json dist/softswap-$$crate.cdx.json || exit; \
	done
	sed -i 's|path+file://$(CURDIR)/|path+file:|g' dist/*.cdx.json
	rm -f crates/*/softswap.cdx.json fuzz/softswap.cdx.json
	packaging/paths.sh dist/*.json
	cd dist && sha256sum -- * >SHA256SUMS

clean: ## remove what was built
	$(CARGO) clean
	rm -rf dist

# Targets for users come first.
for_users := build install install-debug uninstall demo bench wheel tarball deb dist
listed = @sed -n 's/^\([a-z-]*\):[^\#]*\#\# \(.*\)/\1\t\2/p' $(MAKEFILE_LIST)
is_for_user := ^($(subst $(empty) ,|,$(for_users)))	
help: ## show this list
	@echo "To use softswap:"
	$(listed) | grep -E '$(is_for_user)' | sed 's/^/  make /' | expand -t 20
	@echo "To work on it:"
	$(listed) | grep -vE '$(is_for_user)' | sed 's/^/  make /' | expand -t 20
