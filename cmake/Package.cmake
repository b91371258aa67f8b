# What is installed: headers, libraries, zero-run, man pages, and what finds them again.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zero)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(headers ${ZERO_PUBLIC_HEADERS} ${ZERO_MPI_HEADERS})
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/zero/)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zero)
install(TARGETS zero_shared zero_static EXPORT zero
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS zero-run zero-ckpt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/zero.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
install(FILES ${PROJECT_SOURCE_DIR}/tools/zero-run/zero-run.1
              ${PROJECT_SOURCE_DIR}/tools/zero-ckpt/zero-ckpt.1
        DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# find_package(zero): zero::zero is the shared library, zero::static the other.
install(EXPORT zero FILE zeroTargets.cmake NAMESPACE zero:: DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/zeroConfig.cmake
              ${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake DESTINATION ${package_dir})

# The .pc file finds its prefix from where it lies, so an installed tree may be moved.
file(RELATIVE_PATH ZERO_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/zero.pc.in ${PROJECT_BINARY_DIR}/zero.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/zero.pc DESTINATION ${pkgconfig_dir})
