# dptrain: `make` builds build/dptrain; a second `make` does nothing.
#
# Targets
#   all            build/dptrain (the default)
#   check-units    the test programs, into build/tests (needs cmocka); scripts/test.sh runs them
#   fakes          what stands in for a GPU's driver and libraries in tests, into build/tests/fakegpu
#   install        the binary, man page, completions, README, example jobs and batch files, into $(DESTDIR)$(PREFIX)
#   uninstall      takes those away again
#   dist           the sources, build/dist/dptrain-VERSION.tar.gz
#   bundle         a folder and an archive of it that run anywhere, with the libraries and Open MPI (scripts/packaging)
#   deb            a Debian package
#   clean          removes what make built
#   format         clang-format over all C files
#   style          do they look as clang-format has them, and what shellcheck finds in the scripts. Versions of clang-format
#                  differ, so only 14 counts, which is Debian 12's; where there is another one or none, a line says so
#   lint           that, and what clang-tidy finds in the C files (.clang-tidy); FILES='cmd/%' takes some only
#   help           this text
#
# Knobs: `make NAME=value`, or from the environment. A change of one rebuilds what it touches.
#   BUILD=build         folder for all that make writes; build/sanitize with SANITIZE=1, build/debug with DEBUG=1
#   CC=gcc              the C compiler (gcc or clang)
#   CFLAGS=-O3 -g       optimisation and debugging; what the code needs is added to it
#   CPPFLAGS= LDFLAGS=  more for the preprocessor and the linker
#   V=0                 1: show each command
#   WERROR=0            1: a warning is an error, as for the tests; no object is built again for it
#   DEBUG=0             1: no optimisation
#   SANITIZE=0          1: stop at memory errors and undefined behaviour (AddressSanitizer, UBSan)
#   MPICC=mpicc         the MPI's compiler wrapper (Open MPI, MPICH, a cluster's own); it compiles core/comm and links.
#                       Debian's MPICH beside Open MPI: make MPICC=mpicc.mpich BUILD=build/mpich
#   ONEDNN=auto         oneDNN's kernels besides ours: 1 insists on them, 0 leaves them out, auto looks for them
#   CUDA=auto           the GPU's kernels and libraries' tables: 1 insists on nvcc and cuDNN 9.8 or later, 0 leaves them out,
#                       auto looks for them. auto compiles code for sm_90 and PTX for all others, 1 for each architecture
#   CUDA_ARCHS=         or for these only: CUDA_ARCHS='80 90'; the first one's PTX serves all later ones
#   CUDA_HOME= CUDNN_ROOT=
#                       where the toolkit and cuDNN lie; nothing is linked to them, so they may also be missing at run time
#   TIFF=auto BMP=auto WEBP=auto
#                       pictures as TIFF by libtiff, as BMP and GIF by the header stb_image.h, as WebP by libwebp: 1 insists,
#                       0 leaves them out
#   HDF5_ROOT= ONEDNN_ROOT= YAML_ROOT= JANSSON_ROOT= ZLIB_ROOT= LIBZIP_ROOT= PNG_ROOT= JPEG_ROOT= TIFF_ROOT= WEBP_ROOT=
#   CMOCKA_ROOT=
#                       where a library lies (its include/ and lib/ or lib64/), as a cluster's modules set it;
#                       its lib folder is written into the binary (rpath). Empty: pkg-config, then the compiler's own paths
#   PKG_CONFIG=pkg-config
#   PREFIX=/usr/local   where `make install` puts things
#   DESTDIR=            in front of PREFIX while installing, for packages
#
# What is missing is named in one list, with its Debian package and its knob. On Debian scripts/setup.sh installs it.

VERSION = 0.1.0

DEBUG ?= 0
SANITIZE ?= 0
ifeq ($(SANITIZE),1)
BUILD ?= build/sanitize
CFLAGS ?= -O0 -g1 -fno-omit-frame-pointer
else ifeq ($(DEBUG),1)
BUILD ?= build/debug
CFLAGS ?= -O0 -g3
else
BUILD ?= build
CFLAGS ?= -O3 -g
endif
ifeq ($(origin CC),default)
CC = gcc
endif
CPPFLAGS ?=
LDFLAGS ?=
V ?= 0
WERROR ?= 0
MPICC ?= mpicc
ONEDNN ?= auto
TIFF ?= auto
BMP ?= auto
WEBP ?= auto
CUDA ?= auto
CUDA_ARCHS ?=
CUDA_HOME ?=
CUDNN_ROOT ?=
HDF5_ROOT ?=
ONEDNN_ROOT ?=
YAML_ROOT ?=
JANSSON_ROOT ?=
ZLIB_ROOT ?=
LIBZIP_ROOT ?=
PNG_ROOT ?=
JPEG_ROOT ?=
TIFF_ROOT ?=
WEBP_ROOT ?=
CMOCKA_ROOT ?=
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
DESTDIR ?=

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
silent := $(findstring s,$(firstword -$(MAKEFLAGS)))
MAKEFLAGS += --no-builtin-rules
# One line a command: `CC file`; the command itself with V=1; nothing with make -s.
say = @$(if $(filter 1,$(V)),set -x;,$(if $(silent),,printf '  %-5s %s\n' $1 $2;))
.PHONY: all fakes check-units install uninstall dist bundle deb clean format style lint help
building := $(filter-out clean format style help uninstall dist,$(or $(MAKECMDGOALS),all))

# A stamp is a file with a text: written anew only where the text changed, so that what hangs on it is rebuilt then.
quote = '$(subst ','\'',$1)'
stamp = $(if $(building),$(shell mkdir -p $(BUILD); printf '%s\n' $(call quote,$(strip $2)) >$(BUILD)/$1.new; \
	if cmp -s $(BUILD)/$1.new $(BUILD)/$1; then rm -f $(BUILD)/$1.new; else mv -f $(BUILD)/$1.new $(BUILD)/$1; fi))

# deps.mk says which libraries were found and how to use them: HDF5_CFLAGS, HDF5_LIBS and so on. They are looked for again
# when a knob or a search path changes, or one that may be missing appears.
knobs := CC MPICC ONEDNN CUDA CUDA_ARCHS CUDA_HOME CUDNN_ROOT HDF5_ROOT ONEDNN_ROOT YAML_ROOT JANSSON_ROOT ZLIB_ROOT LIBZIP_ROOT PNG_ROOT JPEG_ROOT TIFF TIFF_ROOT BMP WEBP WEBP_ROOT CMOCKA_ROOT PKG_CONFIG CPPFLAGS LDFLAGS
$(call stamp,knobs,$(foreach knob,$(knobs),$(knob)=$($(knob))) $(PKG_CONFIG_PATH) $(CPATH) $(LIBRARY_PATH) \
	$(shell command -v $(MPICC); command -v nvcc) $(wildcard /usr/include/dnnl.h /usr/include/stb/stb_image.h /usr/include/tiffio.h /usr/include/webp/decode.h /usr/include/cmocka.h /usr/local/cuda/bin/nvcc))
$(BUILD)/deps.mk: scripts/check-deps.sh $(BUILD)/knobs
	@$(foreach knob,$(knobs),$(knob)=$(call quote,$($(knob)))) scripts/check-deps.sh $@
ifneq ($(building),)
include $(BUILD)/deps.mk
endif

# --- sources: one object each; a new file in a room is found, and so is a removed one -----------------------------

modules := core models data cmd
folders := $(sort $(wildcard $(foreach depth,/ /*/ /*/*/ /*/*/*/,$(addsuffix $(depth),$(modules)))))
rooms := $(foreach folder,$(folders),$(if $(findstring /tests/,$(folder)),,$(folder)))
sources := $(sort $(wildcard $(addsuffix *.c,$(rooms))))
ifneq ($(WITH_ONEDNN),1)
sources := $(filter-out core/backend/cpu/onednn/% %_onednn.c,$(sources))
endif
sources := $(filter-out $(if $(filter 1,$(WITH_TIFF)),,%/picture_tiff.c %/picture_tiff_pixels.c) $(if $(filter 1,$(WITH_BMP)),,%/picture_bmp.c %/picture_gif.c) \
	$(if $(filter 1,$(WITH_WEBP)),,%/picture_webp.c),$(sources))
# Where there is no CUDA only what describes the kernels remains, for the tests that run them on the host.
ifneq ($(WITH_CUDA),1)
sources := $(filter-out $(filter-out %/kernels.c,$(filter core/backend/cuda/%,$(sources))),$(sources))
endif
tests := $(sort $(foreach kind,test mpi bench,$(wildcard $(addsuffix tests/$(kind)_*.c,$(rooms)))))
ifneq ($(WITH_ONEDNN),1) # these compare with it
tests := $(filter-out %/bench_gemm.c %/bench_primitives.c %/bench_conv.c,$(tests))
endif
object = $(patsubst %.c,$(BUILD)/obj/%.o,$1)
program = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $1))

main := cmd/main.c
library := $(BUILD)/libdptrain.a
binary := $(BUILD)/dptrain
programs := $(call program,$(tests))
ifneq ($(words $(programs)),$(words $(sort $(programs))))
$(error two test programs have the same name: $(notdir $(programs)))
endif

# --- flags --------------------------------------------------------------------------------------------------------

# The same bits from every compiler: no fused multiply-add behind our back, and no -ffast-math. errno and traps of the
# floating point are not looked at, and without them loops with sqrt and comparisons become vector code.
needed := -std=gnu11 -D_GNU_SOURCE -I. -pthread -ffp-contract=off -fno-math-errno -fno-trapping-math \
	-Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) \
	$(if $(filter 1,$(SANITIZE)),-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=undefined) \
	$(if $(filter 1,$(SANITIZE) $(DEBUG)),-Wno-pass-failed) # loops that are vectors only where there is optimisation
defines := -DDPT_VERSION='"$(VERSION)"' $(if $(filter 1,$(WITH_ONEDNN)),-DDPT_WITH_ONEDNN=1) \
	$(if $(filter 1,$(WITH_CUDA)),-DDPT_WITH_CUDA=1) \
	$(if $(filter 1,$(WITH_TIFF)),-DDPT_WITH_TIFF=1) $(if $(filter 1,$(WITH_BMP)),-DDPT_WITH_BMP=1) \
	$(if $(filter 1,$(WITH_WEBP)),-DDPT_WITH_WEBP=1)

# What computes, and what tests wait for: the sanitizers' build optimises nothing else, since that takes most of its time. Tests
# themselves are optimised little in any build.
computes := core/base/% core/comm/% core/backend/cpu/% core/backend/ref/% core/backend/tests/test_winograd.c core/backend/cuda/tests/emulate.c core/backend/cuda/tests/fake/%
# Only these rooms see these libraries.
room_flags = $(if $(filter 1,$(SANITIZE)),$(if $(filter $(computes),$1),-O1),$(if $(filter test_%.c mpi_%.c,$(notdir $1)),-O1)) \
	$(if $(filter data/% core/state/%,$1),$(HDF5_CFLAGS)) \
	$(if $(filter core/backend/cpu/%,$1),$(ONEDNN_CFLAGS)) \
	$(if $(filter core/backend/cuda/% core/backend/tests/test_operations.c core/train/engines/tests/test_cuda_%,$1),$(CUDA_CFLAGS)) \
	$(if $(filter core/backend/cuda/tests/emulate.c,$1),-fPIC -fvisibility=hidden) \
	$(if $(filter core/backend/cuda/libraries/module.c,$1),-DDPT_CUDA_IMAGE='"$(image)"') \
	$(if $(filter core/comm/mpirun.c,$1),-DDPT_MPI_FOLDER='"$(mpi_folder)"') \
	$(if $(filter data/%,$1),$(ZLIB_CFLAGS) $(PNG_CFLAGS) $(JPEG_CFLAGS) $(TIFF_CFLAGS) $(WEBP_CFLAGS)) $(if $(filter core/base/%,$1),$(ZLIB_CFLAGS)) \
	$(if $(filter core/interchange/% data/tables/%,$1),$(LIBZIP_CFLAGS)) $(if $(filter core/interchange/% core/state/% core/base/tests/%,$1),$(JANSSON_CFLAGS)) \
	$(if $(filter core/conf/%,$1),$(YAML_CFLAGS)) $(if $(findstring /tests/,$1),$(CMOCKA_CFLAGS))
# The wrapper, made to use our compiler, for the one room that calls MPI and for the link.
mpi_cc = OMPI_CC='$(CC)' MPICH_CC='$(CC)' I_MPI_CC='$(CC)' $(MPICC)
with_mpi := core/comm/% $(if $(HDF5_NEEDS_MPI),data/% core/state/%)
# Where the MPI's own programs lie: --ranks looks there for its mpirun where the PATH has none that fits.
mpi_folder := $(patsubst %/,%,$(dir $(shell command -v $(firstword $(MPICC)))))
compiler = $(if $(filter $(with_mpi),$1),$(mpi_cc),$(CC))

compile = $(compiler) $(needed) $(defines) $(CPPFLAGS) $(CFLAGS) $(room_flags)
libraries := $(HDF5_LIBS) $(YAML_LIBS) $(JANSSON_LIBS) $(if $(filter 1,$(WITH_ONEDNN)),$(ONEDNN_LIBS)) $(LIBZIP_LIBS) $(TIFF_LIBS) $(WEBP_LIBS) $(PNG_LIBS) $(JPEG_LIBS) $(ZLIB_LIBS) -ldl -lm
link = $(mpi_cc) $(needed) $(CFLAGS) $(LDFLAGS)
# The test programs, a hundred, by the quicker linker where there is one.
quick_linker := $(if $(shell command -v ld.gold),-fuse-ld=gold)

ifdef WITH_ONEDNN # deps.mk is there
$(call stamp,flags,$(filter-out -Werror,$(call compile)) $(HDF5_CFLAGS) $(ONEDNN_CFLAGS) $(CUDA_CFLAGS) $(CUDA_CODE) $(ZLIB_CFLAGS) $(LIBZIP_CFLAGS) $(PNG_CFLAGS) $(JPEG_CFLAGS) $(TIFF_CFLAGS) $(WEBP_CFLAGS) $(YAML_CFLAGS) $(JANSSON_CFLAGS) $(CMOCKA_CFLAGS) \
	$(LDFLAGS) $(libraries) $(CMOCKA_LIBS))
# Apart from these, since another MPI touches few objects.
$(call stamp,mpi,$(mpi_cc) $(mpi_folder) $(HDF5_NEEDS_MPI))
$(call stamp,sources,$(sources))
endif

# --- rules --------------------------------------------------------------------------------------------------------

all: $(binary)

# From the objects, not the library: so that two rooms with a function of the same name are an error.
$(binary): $(call object,$(sources)) $(BUILD)/flags $(BUILD)/mpi $(BUILD)/sources
	$(call say,LINK,$@) $(link) -o $@ $(filter %.o,$^) $(libraries)

$(library): $(call object,$(filter-out $(main),$(sources))) $(BUILD)/sources
	@rm -f $@
	$(call say,AR,$@) $(AR) rcs $@ $(filter %.o,$^)

# The dependencies' files name $(BUILD) itself, since it may be given as a relative or as an absolute path.
$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<) $(call compile,$<) -MMD -MP -MT '$$(BUILD)/obj/$*.o' -c -o $@ $<

$(filter $(patsubst %,$(BUILD)/obj/%,$(with_mpi)),$(call object,$(sources) $(tests))): $(BUILD)/mpi

# The kernels for the GPU, which module.c makes a part of the program. The sanitizers' and the
# debugger's build have those of the plain one. PTX and what the assembler said are kept for the tests, which would take as long again.
with_plain := $(if $(filter build/sanitize build/debug,$(BUILD)),../)
image := $(if $(with_plain),build,$(BUILD))/kernels.fatbin
nvcc_flags = -I. -std=c++17 -O3 -fmad=false -Xfatbin -compress-all --threads 0 $(if $(filter 1,$(WERROR)),-Werror all-warnings)
ifeq ($(WITH_CUDA),1)
$(call stamp,$(with_plain)kernels.fatbin.flags,$(CUDA_NVCC) $(filter-out -Werror all-warnings,$(nvcc_flags)) $(CUDA_CODE))
endif
# The kernels of the host's list are those of the image, or a GPU's first job would be the one to say so.
same_kernels = grep -ho '\.entry dpt_cuda_[a-z0-9_]*' $1/*.ptx | sed 's/.* //' | sort -u >$1/there; \
	printf '\#include "core/backend/cuda/kernels/kernels.h"\n\#define X(name, ...) LISTED dpt_cuda_\#\#name\nDPT_CUDA_KERNELS(X)\n' | $(CC) -I. -E -P - | \
		grep -o 'LISTED dpt_cuda_[a-z0-9_]*' | sed 's/.* //' | sort -u >$1/listed; \
	test -s $1/there && ! { comm -23 $1/listed $1/there | sed 's/^/kernels.h lists a kernel that kernels.cu does not have: /'; \
		comm -13 $1/listed $1/there | sed 's/^/kernels.cu has a kernel that kernels.h does not list: /'; } | grep . >&2
$(image): $(wildcard $(addprefix core/backend/cuda/kernels/,*.cu *.h *.inc)) core/backend/activations.h core/backend/loss_scale.h core/backend/optimizers.inc $(image).flags
	@rm -rf $@.kept; mkdir -p $@.kept
	$(call say,NVCC,core/backend/cuda/kernels/kernels.cu) $(CUDA_NVCC) $(nvcc_flags) $(CUDA_CODE) -Xptxas -v --keep --keep-dir $@.kept -fatbin -o $@ \
		core/backend/cuda/kernels/kernels.cu 2>$@.kept/said || { cat $@.kept/said >&2; exit 1; }
	@grep warning $@.kept/said >&2; rm -f $@.kept/*.ii $@.kept/*.cubin $@.kept/*.cudafe1.*
	@$(call same_kernels,$@.kept)
$(BUILD)/obj/core/backend/cuda/libraries/module.o: $(image)

# A GPU on the CPU, for tests: core/backend/cuda/tests/fake/fake.h. The other libraries work through the first.
fakegpu := $(BUILD)/tests/fakegpu
fake = $(patsubst %,core/backend/cuda/tests/fake/fake_%.c,$1)
emulation := $(BUILD)/obj/core/backend/cuda/tests/emulate.o
$(fakegpu)/libcuda.so.1: $(call fake,capture clock copies driver enqueue graph kernels memory ranges stream trace) core/backend/cuda/kernels/kernels.c $(emulation)
$(fakegpu)/libcudnn.so.9: $(call fake,conv cudnn cudnn_run engines) $(fakegpu)/libcuda.so.1
$(fakegpu)/libcublasLt.so.13: $(call fake,algorithms cublaslt matmul) $(fakegpu)/libcuda.so.1
$(fakegpu)/libcublasLt.so.12: $(fakegpu)/libcublasLt.so.13
	@ln -sf libcublasLt.so.13 $@
$(fakegpu)/libnccl.so.2: $(call fake,nccl nccl_log) $(fakegpu)/libcuda.so.1
fakes := $(if $(filter 1,$(WITH_CUDA)),$(addprefix $(fakegpu)/,libcuda.so.1 libcudnn.so.9 libcublasLt.so.13 libnccl.so.2))
$(fakes): $(wildcard $(addprefix core/backend/cuda/,libraries/library.h libraries/nccl.h tests/fake/*.h tests/emulate.h kernels/*.h kernels/*.inc)) core/backend/activations.h core/backend/loss_scale.h core/backend/optimizers.inc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(call compile,core/backend/cuda/tests/fake/fake.c) -fPIC -shared -fvisibility=hidden $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -o $@ $(filter %.c %.o,$^) $(filter %.so.1,$^) -lm

fakes: $(if $(fakes),$(fakes) $(fakegpu)/libcublasLt.so.12)
check-units: $(programs) fakes
$(foreach test,$(tests),$(eval $(call program,$(test)): $(call object,$(test))))
$(call program,$(filter core/backend/cuda/tests/test_% core/train/engines/tests/test_cuda_%,$(tests))): $(emulation)
# Which tests of a program are run can be said from outside.
only := $(BUILD)/obj/core/base/tests/only.o
$(programs): $(only) $(library) $(BUILD)/flags $(BUILD)/mpi
	@[ "$(HAVE_CMOCKA)" = 1 ] || { echo "the test programs need cmocka (Debian: libcmocka-dev; or CMOCKA_ROOT=)" >&2; exit 1; }
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(link) $(quick_linker) -o $@ $(filter %.o,$^) $(library) $(libraries) $(CMOCKA_LIBS)

-include $(patsubst %.o,%.d,$(call object,$(sources) $(tests)) $(emulation) $(only))

# --- installing ---------------------------------------------------------------------------------------------------

root = $(DESTDIR)$(PREFIX)
shared := $(BUILD)/share
completions := bash-completion/completions/dptrain zsh/site-functions/_dptrain fish/vendor_completions.d/dptrain.fish
made := man/man1/dptrain.1 dptrain/dptrain.schema.json $(completions)

# What the binary prints about itself, as it lies below share/.
$(shared)/%: $(binary)
	@mkdir -p $(@D)
	$(call say,MAKE,$@) $(binary) $(says) >$@
$(shared)/man/man1/dptrain.1: says = man
$(shared)/dptrain/dptrain.schema.json: says = schema
$(shared)/bash-completion/completions/dptrain: says = completion bash
$(shared)/zsh/site-functions/_dptrain: says = completion zsh
$(shared)/fish/vendor_completions.d/dptrain.fish: says = completion fish

installed := $(binary) $(addprefix $(shared)/,$(made))
examples = $1/share/doc/dptrain/examples
define install_into
install -d $1/bin $(examples)/slurm && \
	install -m 755 $(binary) $1/bin/dptrain && \
	install -m 644 README.md LICENSE scripts/packaging/CHANGELOG.md $1/share/doc/dptrain && \
	install -m 644 $(wildcard configs/*.yaml) data/flowers.csv $(examples) && \
	install -m 644 $(wildcard scripts/slurm/*) $(examples)/slurm && \
	install -D -m 644 scripts/lib/mpi-env.sh $1/share/dptrain/mpi-env.sh && \
	for file in $(made); do install -D -m 644 $(shared)/$$file $1/share/$$file || exit 1; done
endef

install: $(installed)
	$(call install_into,$(root))

uninstall:
	rm -f $(root)/bin/dptrain $(addprefix $(root)/share/,$(made) dptrain/mpi-env.sh)
	-rmdir $(root)/share/dptrain 2>/dev/null || true
	rm -rf $(root)/share/doc/dptrain

# --- packages: scripts/packaging/README.md ------------------------------------------------------------------------

packages := $(BUILD)/dist

dist:
	@scripts/packaging/dist.sh $(VERSION) $(BUILD)

bundle: $(installed)
	@rm -rf $(packages)/bundle
	@$(call install_into,$(packages)/bundle)
	@MPICC='$(MPICC)' scripts/packaging/bundle.sh $(VERSION) $(packages)/bundle $(packages)/dptrain-$(VERSION)-$(shell uname -m)

deb: $(installed)
	@rm -rf $(packages)/deb
	@$(call install_into,$(packages)/deb/usr)
	@scripts/packaging/deb.sh $(VERSION) $(packages)/deb $(packages)

# Names what make writes: BUILD may be a folder with other things in it.
clean:
	rm -rf $(addprefix $(BUILD)/,obj tests share dist libdptrain.a dptrain kernels.fatbin kernels.fatbin.flags kernels.fatbin.kept deps.mk knobs flags mpi sources)
	-rmdir $(BUILD) 2>/dev/null || true

written := find core models data cmd scripts -name '*.[ch]'
clang_format = $(if $(shell command -v clang-format-14),clang-format-14,clang-format)
# Shell: succeeds with version 14, else says what is here instead.
has_format = version=$$($(clang_format) --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p'); [ "$$version" = 14 ] || \
	{ echo "$@: clang-format is left out: it must be version 14, and here is $${version:-none}"; false; }
format:
	@$(has_format)
	$(clang_format) -i $$($(written))

style:
	@if $(has_format); then $(written) -print0 | xargs -0 -n 100 $(clang_format) --dry-run -Werror; fi
	@shellcheck -x .ci/run $$(find scripts -name '*.sh') scripts/slurm/*.sbatch scripts/packaging/bundle-run

FILES ?= %
tidy = clang-tidy --quiet "$$@" -- -std=gnu11 -w -I. -D_GNU_SOURCE $(defines) -DDPT_CUDA_IMAGE='"$(image)"' $(HDF5_CFLAGS) $(ONEDNN_CFLAGS) \
	$(CUDA_CFLAGS) $(YAML_CFLAGS) $(CMOCKA_CFLAGS) $(shell $(MPICC) --showme:compile 2>/dev/null)
lint: style
	@printf '%s\n' $(filter $(FILES),$(sources) $(tests)) | xargs -P $$(nproc) -n 8 sh -c $(call quote,$(tidy)) lint

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
