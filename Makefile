# fathom. `make help` lists the targets.
#
# A source file is found by its folder: nothing is added here for a new command, kernel or test.
# Variables to set on the command line:
#   BUILD=build        folder of everything that is made
#   asan=1             build in $(BUILD)/asan with the address and undefined sanitizers
#   CC= CFLAGS= LDFLAGS= WERROR=   compiler, optimisation, linking; WERROR= lets warnings pass
#   HDF5_CFLAGS= HDF5_LIBS= CJSON_CFLAGS= CJSON_LIBS= BLAS_CFLAGS= BLAS_LIBS=
#   CMOCKA_CFLAGS= CMOCKA_LIBS= NVCC= GNUPLOT=   instead of what the probes find; NVCC= leaves out
#                      the plug-in for NVIDIA GPUs
#   CUDA_ARCH="sm_80 sm_90"   GPUs that it has machine code for, PTX for later ones beside
#   PREFIX=/usr/local DESTDIR=   where `make install` puts the program
#   V=1                show the commands

BUILD := build
PREFIX ?= /usr/local
FUZZ_SECONDS := 300
ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- What is there -------------------------------------------------------------------------
# Debian's pkg-config name of HDF5 may be the MPI build; hdf5-serial is always the serial one.
pkg = $(shell $(PKG_CONFIG) $(1) $(2) 2>/dev/null)
HDF5_PKG := $(firstword $(foreach p,hdf5-serial hdf5,$(if $(call pkg,--modversion,$p),$p)))
HDF5_CFLAGS ?= $(call pkg,--cflags,$(HDF5_PKG))
# It omits the high-level library, which has the dimension scales.
HDF5_LIBS ?= $(or $(subst -lhdf5,-lhdf5_hl -lhdf5,$(call pkg,--libs,$(HDF5_PKG))),-lhdf5_hl -lhdf5)
CJSON_CFLAGS ?= $(call pkg,--cflags,libcjson)
CJSON_LIBS ?= $(or $(call pkg,--libs,libcjson),-lcjson)
BLAS_CFLAGS ?= $(call pkg,--cflags,openblas)
BLAS_LIBS ?= $(or $(call pkg,--libs,openblas),-lopenblas)
CMOCKA_CFLAGS ?= $(call pkg,--cflags,cmocka)
CMOCKA_LIBS ?= $(or $(call pkg,--libs,cmocka),-lcmocka)
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= sm_80 sm_90
GNUPLOT ?= $(shell command -v gnuplot)

# ---- How it is compiled --------------------------------------------------------------------
# -ffp-contract=off: the same C gives the same bits on every machine, with or without FMA.
CFLAGS ?= -O2 -g
WERROR ?= -Werror
WARNINGS := -Wall -Wextra -Wshadow -Wconversion $(WERROR)
OUT := $(BUILD)$(if $(asan),/asan)
, := ,
SANITIZE := $(if $(asan),-fsanitize=address$(,)undefined -fno-omit-frame-pointer \
    -fno-sanitize-recover=all)
MODE := $(strip -std=c17 $(CFLAGS) -fopenmp -ffp-contract=off $(SANITIZE))
# Headers of libraries are not held to our warnings.
LIBRARY_CFLAGS := $(patsubst -I%,-isystem%,$(HDF5_CFLAGS) $(CJSON_CFLAGS) $(BLAS_CFLAGS))
COMPILE := $(CC) -I. -D_GNU_SOURCE $(LIBRARY_CFLAGS) $(MODE) $(WARNINGS)
LIBS := $(HDF5_LIBS) $(CJSON_LIBS) $(BLAS_LIBS) -lm
LINK = $(CC) $(MODE) $(LDFLAGS)
SAY = $(if $(V),,@echo "$(1) $@";)
# CUDA C++ for each GPU of CUDA_ARCH, and PTX of the last, which the driver compiles for later ones.
NUMBERS := $(CUDA_ARCH:sm_%=%)
CUDA_LIBRARY = $(abspath $(dir $(shell command -v $(NVCC)))../lib64)
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 -I. -Xcompiler -fPIC,-fvisibility=hidden \
    -Xcompiler -Wall,-Wextra,-Wshadow,-Wconversion$(if $(WERROR),$(,)-Werror) \
    $(if $(WERROR),--Werror all-warnings) \
    $(foreach n,$(NUMBERS),-gencode=arch=compute_$n$(,)code=sm_$n) \
    -gencode=arch=compute_$(lastword $(NUMBERS))$(,)code=compute_$(lastword $(NUMBERS))

# ---- What it is made of --------------------------------------------------------------------
ROOMS := runtime/base runtime kernels kernels/cpu datasets probes analyze plots
SOURCES := $(wildcard $(ROOMS:%=%/*.c))
TESTS := $(wildcard $(ROOMS:%=%/tests/test_*.c))
FUZZERS := $(wildcard $(ROOMS:%=%/tests/fuzz_*.c))
GPU_CHECKS := $(filter-out %/gpu_case.c,$(wildcard $(ROOMS:%=%/tests/gpu_*.c)))
HELPERS := $(filter-out $(TESTS) $(FUZZERS) $(GPU_CHECKS),$(wildcard $(ROOMS:%=%/tests/*.c)))
OBJECTS := $(SOURCES:%.c=$(OUT)/%.o)
# The plug-in is of C++ and brings the few C files that it calls: nothing of the program's is shared.
PLUGIN := $(if $(and $(NVCC),$(wildcard kernels/cuda/plugin.c),$(if $(asan),,yes)),\
    $(OUT)/fathom-cuda.so)
PLUGIN_CUDA := $(wildcard kernels/cuda/*.cu)
PLUGIN_C := kernels/cuda/plugin.c kernels/depth_plan.c kernels/routing_sums.c runtime/base/status.c \
    runtime/base/version.c
PLUGIN_OBJECTS := $(PLUGIN_CUDA:%.cu=$(OUT)/plugin/%.o) $(PLUGIN_C:%.c=$(OUT)/plugin/%.o)
TEST_PROGRAMS := $(foreach t,$(TESTS:.c=),$(OUT)/tests/$(subst /tests/,/,$t))
GPU_PROGRAMS := $(foreach t,$(GPU_CHECKS:.c=),$(OUT)/tests/$(subst /tests/,/,$t))
FUZZ_PROGRAMS := $(foreach f,$(FUZZERS:.c=),$(OUT)/fuzz/$(patsubst fuzz_%,%,$(notdir $f)))

.PHONY: all report programs tests fuzz-programs deps demo check check-gpu fuzz install uninstall \
    bundle bundle-gpu clean help FORCE
all: report $(OUT)/fathom $(PLUGIN) ## the program, build/fathom, and build/fathom-cuda.so
programs: $(OUT)/fathom $(PLUGIN)
tests: $(TEST_PROGRAMS) $(GPU_PROGRAMS)
fuzz-programs: $(FUZZ_PROGRAMS)

$(OUT)/fathom: $(OUT)/runtime/main.o $(OUT)/libfathom.a
	$(call SAY,link)$(LINK) -o $@ $^ $(LIBS)
$(OUT)/libfathom.a: $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^
$(OUT)/libtests.a: $(HELPERS:%.c=$(OUT)/%.o)
	@rm -f $@
	@ar rcs $@ $^

$(OUT)/%.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(call SAY,cc)$(COMPILE) $(EXTRA) -MMD -MP -c -o $@ $<
$(OUT)/runtime/base/version.o $(OUT)/plugin/runtime/base/version.o: EXTRA = -I$(OUT)
$(OUT)/runtime/base/version.o $(OUT)/plugin/runtime/base/version.o: $(OUT)/build_info.h
$(patsubst %.c,$(OUT)/%.o,$(TESTS) $(HELPERS) $(GPU_CHECKS)): EXTRA = $(CMOCKA_CFLAGS)

# cuBLASLt is looked for beside the plug-in, then where this nvcc has it.
$(OUT)/fathom-cuda.so: $(PLUGIN_OBJECTS)
	$(call SAY,link)$(NVCC) -shared -Xcompiler -static-libstdc++,-static-libgcc -o $@ $^ -lcublasLt \
	    -Xlinker -z,defs,--exclude-libs,ALL \
	    -Xlinker '-rpath,$$ORIGIN:$$ORIGIN/lib:$(CUDA_LIBRARY)'
$(OUT)/plugin/%.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(call SAY,cc)$(COMPILE) $(EXTRA) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<
$(OUT)/plugin/%.o: %.cu $(OUT)/cuda_flags
	@mkdir -p $(@D)
	$(call SAY,nvcc)$(NVCC_COMPILE) -MMD -MP -c -o $@ $<
$(OUT)/cuda_flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC_COMPILE)' > $@.new
	@if cmp -s $@.new $@; then rm -f $@.new; else mv $@.new $@; fi

define test_program
$(OUT)/tests/$(subst /tests/,/,$(1:.c=)): $(1:%.c=$(OUT)/%.o) $(OUT)/libtests.a $(OUT)/libfathom.a
	@mkdir -p $$(@D)
	$$(call SAY,link)$$(LINK) -o $$@ $$^ $$(CMOCKA_LIBS) $$(LIBS)
endef
$(foreach t,$(TESTS) $(GPU_CHECKS),$(eval $(call test_program,$t)))
define fuzz_program
$(OUT)/fuzz/$(patsubst fuzz_%.c,%,$(notdir $1)): $(1:%.c=$(OUT)/%.o) $(OUT)/libfathom.a
	@mkdir -p $$(@D)
	$$(call SAY,link)$$(LINK) -o $$@ $$^ $$(LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_program,$f)))
-include $(patsubst %.c,$(OUT)/%.d,$(SOURCES) $(TESTS) $(FUZZERS) $(HELPERS) $(GPU_CHECKS)) \
    $(PLUGIN_OBJECTS:.o=.d)

# Rewritten only when its text changes; then everything is compiled anew. The libraries are tried
# here, once, so that a missing one is reported by name and not by the first file that fails.
define try_library
printf '#include <%s>\nint main(void) { return %s; }\n' '$(2)' '$(3)' > $@.c; \
$(COMPILE) -o $@.out $@.c $(4) > $@.log 2>&1 || { cat $@.log >&2; \
echo "fathom: $(1) is missing or unusable (<$(2)>, $(4)): run 'make deps' (package $(5)), or set $(6)_CFLAGS= and $(6)_LIBS=" >&2; \
rm -f $@.new; exit 1; };
endef
$(OUT)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(COMPILE) | $(LINK) $(LIBS) $(CMOCKA_CFLAGS) $(CMOCKA_LIBS)' > $@.new
	@if cmp -s $@.new $@; then rm -f $@.new; exit 0; fi; \
	command -v $(firstword $(CC)) > /dev/null || { \
	    echo "fathom: no C compiler '$(CC)': run 'make deps', or set CC=" >&2; exit 1; }; \
	$(call try_library,HDF5,hdf5.h,H5open() < 0,$(HDF5_LIBS),libhdf5-dev,HDF5) \
	$(call try_library,cJSON,cjson/cJSON.h,cJSON_Version() == 0,$(CJSON_LIBS),libcjson-dev,CJSON) \
	$(call try_library,OpenBLAS,cblas.h,openblas_get_config() == 0,$(BLAS_LIBS),libopenblas-dev,BLAS) \
	rm -f $@.c $@.out $@.log; mv $@.new $@

# The commit, where this folder is the top of a git work tree; a tarball has only the version.
VERSION := $(shell sed -n 's/.*FATHOM_VERSION "\(.*\)"/\1/p' runtime/base/version.h)
HASH = $(shell test -e .git && git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)
LIBRARIES = HDF5 $(or $(call pkg,--modversion,$(HDF5_PKG)),unknown), cJSON \
    $(or $(call pkg,--modversion,libcjson),unknown), OpenBLAS \
    $(or $(call pkg,--modversion,openblas),unknown)
$(OUT)/build_info.h: FORCE
	@mkdir -p $(@D)
	@printf '#define BUILD_FLAGS "%s"\n#define BUILD_HASH "%s"\n#define BUILD_LIBRARIES "%s"\n' \
	    '$(subst ",\\",$(MODE))' '$(or $(HASH),$(VERSION))' '$(strip $(LIBRARIES))' > $@.new
	@if cmp -s $@.new $@; then rm -f $@.new; else mv $@.new $@; fi

report:
	@$(foreach l,HDF5 CJSON BLAS CMOCKA,echo "$(l): $(strip $($(l)_CFLAGS) $($(l)_LIBS))";)
	@echo "gnuplot: $(or $(GNUPLOT),not found (figures are written as scripts only))"
	@echo "nvcc: $(if $(NVCC),$(NVCC)$(,) CUDA_ARCH=$(CUDA_ARCH),not found)"

# ---- Packages ------------------------------------------------------------------------------
# Each package and the command that succeeds where it is not needed any more.
PACKAGES_BUILD := gcc libc6-dev make pkg-config libhdf5-dev libcjson-dev libopenblas-dev gnuplot-nox
PACKAGES_CHECK := libcmocka-dev hdf5-tools python3-h5py python3-xarray python3-h5netcdf \
    python3-netcdf4 chromium
compiles = printf '\#include <stddef.h>\n\#include <stdarg.h>\n\#include <setjmp.h>\n\#include \
    <stdint.h>\n\#include <$(1)>\nint main(void) { return 0; }' | $(CC) $(2) -xc - -o /dev/null $(3)
imports = $(PYTHON) -c 'import sys, importlib.util as u; sys.exit(u.find_spec("$(1)") is None)'
has_gcc = command -v $(CC)
has_libc6-dev = $(call compiles,stdio.h)
has_make = command -v make
has_pkg-config = command -v $(PKG_CONFIG)
has_libhdf5-dev = $(call compiles,hdf5.h,$(HDF5_CFLAGS),$(HDF5_LIBS))
has_libcjson-dev = $(call compiles,cjson/cJSON.h,$(CJSON_CFLAGS),$(CJSON_LIBS))
has_libopenblas-dev = $(call compiles,cblas.h,$(BLAS_CFLAGS),$(BLAS_LIBS))
has_gnuplot-nox = test -n "$(GNUPLOT)"
has_libcmocka-dev = $(call compiles,cmocka.h,$(CMOCKA_CFLAGS),$(CMOCKA_LIBS))
has_hdf5-tools = command -v h5dump
has_python3-h5py = $(call imports,h5py)
has_python3-xarray = $(call imports,xarray)
has_python3-h5netcdf = $(call imports,h5netcdf)
has_python3-netcdf4 = $(call imports,netCDF4)
# Ubuntu's is a snap, which containers cannot run; its test is skipped there.
has_chromium = command -v chromium || command -v google-chrome || grep -qs '^ID=ubuntu' /etc/os-release
missing = $(strip $(foreach p,$(1),$(shell { $(or $(has_$p),dpkg -s $p); } > /dev/null 2>&1 || echo $p)))

# One call of $(1) with the packages of $(2) present, asked anew after they were installed.
JOBS := $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1))
with_packages = $(if $(call missing,$(2)),$(MAKE) --no-print-directory deps PACKAGES='$(2)' &&) \
    $(MAKE) --no-print-directory $(JOBS) $(1)

PACKAGES := $(PACKAGES_BUILD) $(PACKAGES_CHECK)
deps: ## install the packages that are missing (apt)
	@set -- $(call missing,$(PACKAGES)); \
	if [ $$# -eq 0 ]; then echo "fathom: every package is there"; exit 0; fi; \
	echo "fathom: missing: $$*"; \
	command -v apt-get > /dev/null || { \
	    echo "fathom: there is no apt-get here; install these (Debian's names) and run make again: $$*" >&2; \
	    exit 1; }; \
	apt="env DEBIAN_FRONTEND=noninteractive apt-get"; \
	if [ "$$(id -u)" -ne 0 ]; then apt="sudo $$apt"; command -v sudo > /dev/null || { \
	    echo "fathom: installing needs root and there is no sudo; as root: apt-get install $$*" >&2; \
	    exit 1; }; fi; \
	ls /var/lib/apt/lists/*_Packages* > /dev/null 2>&1 || $$apt update; \
	$$apt install -y --no-install-recommends "$$@" || \
	{ $$apt update && $$apt install -y --no-install-recommends "$$@"; } || { \
	    echo "fathom: apt-get could not install them; as root: apt-get install $$*" >&2; exit 1; }

# ---- Running it ----------------------------------------------------------------------------
demo: ## build, then report on the bundled models: build/demo/index.html
	+@$(call with_packages,all,$(PACKAGES_BUILD))
	@FATHOM=$(abspath $(OUT))/fathom sh datasets/demo.sh $(OUT)/demo

check: ## build and run every test; asan=1 under the sanitizers
	+@$(call with_packages,check-run,$(PACKAGES_BUILD) $(PACKAGES_CHECK))

.PHONY: check-run
check-run:
	@$(MAKE) --no-print-directory -k all tests bundle \
	    $(if $(FUZZERS),&& $(MAKE) --no-print-directory -k asan=1 fuzz-programs); built=$$?; \
	BUILT=$$built OUT=$(OUT) ASAN=$(asan) TESTS='$(TEST_PROGRAMS)' \
	FUZZERS='$(subst $(OUT)/fuzz,$(BUILD)/asan/fuzz,$(FUZZ_PROGRAMS))' \
	sh runtime/tests/run.sh

# The checks draw new inputs each time. FATHOM_PLUGINS: where the plug-in is found by programs that
# are not beside it.
check-gpu: programs $(GPU_PROGRAMS) ## compare CUDA with the CPU: every operation, every golden
	@set -e; for check in $(GPU_PROGRAMS); do echo "== $$check"; \
	    FATHOM_PLUGINS=$(OUT) $$check $(GPU_CHECK_ARGUMENTS); done

fuzz: ## run each fuzz driver for FUZZ_SECONDS=300
	@$(MAKE) --no-print-directory asan=1 fuzz-programs
	@set -e; for f in $(subst $(OUT)/fuzz,$(BUILD)/asan/fuzz,$(FUZZ_PROGRAMS)); do \
	    seed=$$(date +%s); echo "$$f $(FUZZ_SECONDS) $$seed"; \
	    mkdir -p $(OUT)/tmp; TEST_TMP=$(OUT)/tmp $$f $(FUZZ_SECONDS) $$seed; done

install: all ## copy the program to $(PREFIX)/bin
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 755 $(OUT)/fathom '$(DESTDIR)$(PREFIX)/bin/fathom'
	$(if $(PLUGIN),install -d '$(DESTDIR)$(PREFIX)/lib/fathom' && \
	    install -m 755 $(PLUGIN) '$(DESTDIR)$(PREFIX)/lib/fathom')
uninstall: ## remove it from there
	rm -f '$(DESTDIR)$(PREFIX)/bin/fathom' '$(DESTDIR)$(PREFIX)/lib/fathom/fathom-cuda.so'

# RPATH, not RUNPATH: only the former is also used for the libraries' own libraries. The C library
# itself must come from the machine, and cuBLASLt, of half a gigabyte, with a CUDA toolkit.
GLIBC := ld-linux.*|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_.*
bundle_libraries = ldd $(1) | awk '$$3 ~ /^\// { print $$3 }' | grep -Ev '/($(GLIBC))\.so' | sort -u | \
    while read -r library; do cp -L "$$library" $(2)/lib/; done
bundle: $(OUT)/bundle/fathom ## program and its libraries in build/bundle, to be copied elsewhere
$(OUT)/bundle/fathom: $(OUT)/runtime/main.o $(OUT)/libfathom.a $(PLUGIN)
	@rm -rf $(@D) && mkdir -p $(@D)/lib
	$(call SAY,link)$(LINK) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' -o $@ \
	    $(OUT)/runtime/main.o $(OUT)/libfathom.a $(LIBS)
	@$(call bundle_libraries,$@,$(@D))
	@$(if $(PLUGIN),cp $(PLUGIN) $(@D)/)

# For a machine with a GPU and without the packages; the programs want LD_LIBRARY_PATH=bundle/lib
# and the repository as working folder.
bundle-gpu: $(OUT)/gpu.tgz ## what `make check-gpu` runs, in one archive, to be unpacked elsewhere
$(OUT)/gpu.tgz: $(OUT)/bundle/fathom $(GPU_PROGRAMS)
	@cp $(GPU_PROGRAMS) $(OUT)/bundle/
	@$(call bundle_libraries,$(GPU_PROGRAMS),$(OUT)/bundle)
	@strip $(addprefix $(OUT)/bundle/,fathom $(notdir $(GPU_PROGRAMS)))
	@tar -C $(OUT) -czf $@ bundle

clean: ## remove $(BUILD)
	rm -rf $(BUILD)
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@sed -n '/^# Variables/,/^$$/s/^# \{0,1\}//p' Makefile
