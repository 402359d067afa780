"""Kernels that break, as the driver compiles them: needs neither nvcc nor NVRTC. Torch must have made its context."""

import ctypes

KERNEL = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry bad()
{
    .reg .b64 %%address;
    .reg .b32 %%value;
    mov.u64 %%address, %d;
    mov.u32 %%value, 1;
    %s
    ret;
}
\0"""
STORE = b"st.global.u32 [%address], %value;"


def launch(address=16, instruction=STORE):
    """Store a word at an address that no program has, or run another instruction."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    text = ctypes.c_char_p(KERNEL % (address, instruction))
    made = [driver.cuModuleLoadData(ctypes.byref(module), text)]
    made.append(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"bad"))
    made.append(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    assert made == [0, 0, 0], made
