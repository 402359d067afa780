"""A program whose main thread exits while another goes on; it prints its pid, and that of a child of the other thread.

The kernel lists it as a zombie, with two threads.
"""

HEADLESS = """
import ctypes, os, subprocess, threading, time
quiet = subprocess.DEVNULL
def stay():
    print(os.getpid(), subprocess.Popen(["sleep", "300"], stdout=quiet, stderr=quiet, env={}).pid, flush=True)
    time.sleep(300)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""
