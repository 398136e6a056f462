"""Language models behind one interface, whether they run on a server or in this process."""
