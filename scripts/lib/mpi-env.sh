# shellcheck shell=sh
# Sourced: what Open MPI needs where a script starts ranks itself, on a laptop, in a container, as root, on one core.
# It only fills in what is not set already.
export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
# More ranks than cores are fine, and then a waiting rank gives its core away. Open MPI 5 fills the first node with all ranks, whatever
# its slots, unless it maps by slot.
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-slot:oversubscribe}" # Open MPI 5
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
# A rank's threads may use all cores.
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}" # Open MPI 5
# Containers forbid the system call that it would use otherwise, and it complains for each message.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
# One machine only: no ssh is needed, and none is looked for.
command -v ssh >/dev/null 2>&1 || export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-sh}"
# Where Debian's plug-ins of hwloc lie about, Open MPI looks for X displays at every start, each one a question to the name server
# where there is no /etc/hosts: milliseconds mostly, five seconds when an answer gets lost. It also reads the registers of every PCI
# device, in every process: in a virtual machine a fifth of all the time that three ranks take to start.
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl,-opencl,-pci,-linuxio}"
# Ranks of one machine talk through shared memory, those of its network namespaces through TCP. Looking for networks beside these
# (UCX, libfabric, verbs) takes as long as all the rest of a start: 0.19 s instead of 0.39 for three ranks.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-^ofi,openib}"
